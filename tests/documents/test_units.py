"""Times and bytes with their units, as Chainer writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

import pytest

from torchprof_hooks.documents.render.units import format_byte_column, format_times
from torchprof_hooks.profiles.names import ByteUnit, TimeUnit

Format = Callable[[Sequence[int], str], list[str]]

US, MS, S = 10**3, 10**6, 10**9
KB, MB, GB, TB = (1024**power for power in range(1, 5))
CHOICES: dict[Format, tuple[str, ...]] = {
    format_times: get_args(TimeUnit),
    format_byte_column: get_args(ByteUnit),
}


@pytest.mark.parametrize(
    ("values", "unit", "texts"),
    [
        # The unit is the largest in which the value is at least 1.
        ([0, 1, 999], "auto_foreach", "0.00ns 1.00ns 999.00ns"),
        ([US, MS - 1], "auto_foreach", "1.00us 1000.00us"),
        ([MS, S - 1000], "auto_foreach", "1.00ms 1000.00ms"),
        ([S, 10**15], "auto_foreach", "1.00sec 1000000.00sec"),
        # One for all: that of the value farthest from 0.
        ([1500, 2 * MS, 0], "auto", "0.00ms 2.00ms 0.00ms"),
        ([1500, -2 * MS], "auto", "0.00ms -2.00ms"),
        ([1_234_567_891], "sec", "1.23sec"),
        ([1_234_567_891], "ns", "1234567891.00ns"),
    ],
)
def test_times(values: list[int], unit: str, texts: str) -> None:
    assert format_times(values, unit) == texts.split()


@pytest.mark.parametrize(
    ("values", "unit", "texts"),
    [
        ([0, 1023, KB, MB - 1], "auto_foreach", "0.00B 1023.00B 1.00KB 1024.00KB"),
        ([MB, GB, TB, TB * KB], "auto_foreach", "1.00MB 1.00GB 1.00TB 1.00PB"),
        ([TB * MB, TB * GB, TB**2], "auto_foreach", "1.00EB 1.00ZB 1024.00ZB"),
        ([-1, -KB, -3_355_443], "auto_foreach", "-1.00B -1.00KB -3.20MB"),
        ([512, 2048, 0], "auto", "0.50KB 2.00KB 0.00KB"),
        ([512, -2048], "auto", "0.50KB -2.00KB"),
        ([0, -MB], "auto", "0.00MB -1.00MB"),
        ([1_572_864, -2048], "B", "1572864.00B -2048.00B"),
        ([1_572_864, -1536], "KB", "1536.00KB -1.50KB"),
        ([TB * MB], "PB", "1024.00PB"),
    ],
)
def test_bytes(values: list[int], unit: str, texts: str) -> None:
    assert format_byte_column(values, unit) == texts.split()


@pytest.mark.parametrize("form", CHOICES)
@pytest.mark.parametrize("unit", ["s", "kb", ""])
def test_an_unknown_unit_is_refused_with_the_valid_ones(
    form: Format, unit: str
) -> None:
    *most, last = map(repr, CHOICES[form])
    valid = f"{', '.join(most)} or {last}"
    with pytest.raises(ValueError, match=f"unit must be {valid}, not '{unit}'$"):
        form([1], unit)
