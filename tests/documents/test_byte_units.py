from __future__ import annotations

from typing import get_args

import pytest

from torchprof_hooks.documents.render.units import (
    BYTE_UNITS,
    best_byte_format,
    check_byte_unit,
    choose_byte_unit,
    format_byte_column,
    format_bytes,
)
from torchprof_hooks.profiles.names import ByteUnit

UNITS = ["B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB"]


def test_the_units_are_powers_of_1024() -> None:
    assert list(BYTE_UNITS) == UNITS
    assert [BYTE_UNITS[unit] for unit in UNITS] == [1024**n for n in range(8)]


@pytest.mark.parametrize(("power", "unit"), list(enumerate(UNITS)))
def test_the_unit_changes_at_every_power_of_1024(power: int, unit: str) -> None:
    assert choose_byte_unit(1024**power) == unit
    assert choose_byte_unit(1024 ** (power + 1) - 1) == unit


@pytest.mark.parametrize(
    ("value", "expected"),
    [(-(1024**3), "B"), (-1, "B"), (0, "B"), (1023, "B"), (1024**8, "ZB")],
)
def test_units_at_the_ends(value: int, expected: str) -> None:
    assert choose_byte_unit(value) == expected


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (1_572_864, "B", "1572864.00B"),
        (1_572_864, "KB", "1536.00KB"),
        (1_572_864, "MB", "1.50MB"),
        (1_572_864, "GB", "0.00GB"),
        (5 * 1024**4, "TB", "5.00TB"),
        (5 * 1024**4, "GB", "5120.00GB"),
        (1024**6, "PB", "1024.00PB"),
        (1024**6, "EB", "1.00EB"),
        (1024**8, "ZB", "1024.00ZB"),
        (-1536, "KB", "-1.50KB"),
    ],
)
def test_a_value_has_two_decimals_and_its_unit(
    value: int, unit: str, expected: str
) -> None:
    assert format_bytes(value, unit) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0.00B"),
        (1023, "1023.00B"),
        (1024, "1.00KB"),
        (-1, "-1.00B"),
        (-1024, "-1.00KB"),
        (-3_355_443, "-3.20MB"),
        (1024**8, "1024.00ZB"),
    ],
)
def test_a_single_value_has_the_unit_of_its_magnitude(
    value: int, expected: str
) -> None:
    assert best_byte_format(value) == expected


def test_auto_is_the_unit_of_the_value_farthest_from_0() -> None:
    assert format_byte_column([512, 2048, 0], "auto") == ["0.50KB", "2.00KB", "0.00KB"]
    assert format_byte_column([512, -2048], "auto") == ["0.50KB", "-2.00KB"]
    assert format_byte_column([-512, 2048], "auto") == ["-0.50KB", "2.00KB"]
    assert format_byte_column([0, -(1024**2)], "auto") == ["0.00MB", "-1.00MB"]


def test_auto_foreach_is_the_unit_of_each_value() -> None:
    values = [512, 2048, 0, -3 * 1024**2]

    assert format_byte_column(values, "auto_foreach") == [
        "512.00B",
        "2.00KB",
        "0.00B",
        "-3.00MB",
    ]


def test_a_unit_by_name_is_for_all_values() -> None:
    assert format_byte_column([512, -2048], "B") == ["512.00B", "-2048.00B"]


@pytest.mark.parametrize("unit", get_args(ByteUnit))
def test_no_values_give_no_texts(unit: str) -> None:
    assert format_byte_column([], unit) == []


@pytest.mark.parametrize("unit", ["kb", "MiB", "", "auto_each", "YB"])
def test_an_unknown_unit_is_refused_with_the_valid_ones(unit: str) -> None:
    message = (
        "unit must be 'auto', 'auto_foreach', 'B', 'KB', 'MB', 'GB', 'TB', 'PB', 'EB' "
        f"or 'ZB', not '{unit}'$"
    )

    with pytest.raises(ValueError, match=message):
        check_byte_unit(unit)
    with pytest.raises(ValueError, match=message):
        format_byte_column([1], unit)


def test_all_choices_are_valid() -> None:
    assert list(get_args(ByteUnit)) == ["auto", "auto_foreach", *UNITS]
    for unit in get_args(ByteUnit):
        check_byte_unit(unit)
