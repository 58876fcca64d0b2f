from __future__ import annotations

import pytest

from torchprof_hooks.documents.render.units import (
    check_unit,
    choose_unit,
    format_time,
    format_times,
)


@pytest.mark.parametrize(
    ("value_ns", "expected"),
    [
        (-1, "ns"),
        (0, "ns"),
        (0.5, "ns"),
        (1, "ns"),
        (999.99, "ns"),
        (10**3 - 1, "ns"),
        (10**3, "us"),
        (10**6 - 1, "us"),
        (10**6, "ms"),
        (10**9 - 1, "ms"),
        (10**9, "sec"),
        (10**15, "sec"),  # a million seconds: there is nothing larger
    ],
)
def test_the_unit_is_the_first_in_which_the_value_is_at_least_1(
    value_ns: float, expected: str
) -> None:
    assert choose_unit(value_ns) == expected


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("sec", "1.23sec"),
        ("ms", "1234.57ms"),
        ("us", "1234567.89us"),
        ("ns", "1234567891.00ns"),
    ],
)
def test_a_value_has_two_decimals_and_its_unit(unit: str, expected: str) -> None:
    assert format_time(1_234_567_891, unit) == expected


def test_one_unit_for_all_values() -> None:
    assert format_times([0, 1500, 2_000_000], "us") == ["0.00us", "1.50us", "2000.00us"]


def test_auto_is_the_unit_of_the_largest_value() -> None:
    # 2 000 000 ns is at least 1 in ms
    assert format_times([1500, 2_000_000, 0], "auto") == ["0.00ms", "2.00ms", "0.00ms"]
    assert format_times([1500, -2_000_000], "auto") == ["0.00ms", "-2.00ms"]


def test_auto_foreach_is_the_unit_of_each_value() -> None:
    assert format_times([1500, 2_000_000, 0, 3 * 10**9], "auto_foreach") == [
        "1.50us",
        "2.00ms",
        "0.00ns",
        "3.00sec",
    ]


@pytest.mark.parametrize("unit", ["auto", "auto_foreach", "sec", "ms", "us", "ns"])
def test_no_values_give_no_texts(unit: str) -> None:
    assert format_times([], unit) == []


@pytest.mark.parametrize("unit", ["s", "SEC", "", "auto_each", "seconds"])
def test_an_unknown_unit_is_refused_with_the_valid_ones(unit: str) -> None:
    message = (
        f"unit must be 'auto', 'auto_foreach', 'sec', 'ms', 'us' or 'ns', not '{unit}'$"
    )

    with pytest.raises(ValueError, match=message):
        check_unit(unit)
    with pytest.raises(ValueError, match=message):
        format_times([1], unit)
