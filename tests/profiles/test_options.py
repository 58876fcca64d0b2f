from __future__ import annotations

import re

import pytest

from torchprof_hooks.profiles.options import check_share


@pytest.mark.parametrize(
    ("share", "ways"),
    [
        (0.02, ["2%", "0.02", 0.02]),
        (0.03, [" 3% "]),
        (0.025, ["2.5 %"]),
        (0.005, [".5%", "0.5%"]),
        (0.0, ["0", "0%"]),
        (0.01, ["1%"]),
        (1.0, ["1", 1, "100%"]),
        (10.0, ["1000%"]),
        (1e-05, [1e-05]),
    ],
)
def test_ways_to_write_a_share(share: float, ways: list[str | float]) -> None:
    assert [check_share("it", way) for way in ways] == pytest.approx(
        [share] * len(ways)
    )


@pytest.mark.parametrize(
    "written",
    ["", "%", "-5%", "5%%", "nan", "inf%", "-0.1", "half", "\u0665%"],
)
def test_what_is_no_share(written: str) -> None:
    with pytest.raises(ValueError, match=r'^it must be a share, "2%" or 0\.02, not'):
        check_share("it", written)


@pytest.mark.parametrize(
    ("written", "instead"), [("5", "5%"), (2, "2%"), (1.01, "1.01%")]
)
def test_a_number_above_1_is_no_share(written: str | float, instead: str) -> None:
    message = f'above must be a share, "2%" or 0.02: above 1, write "{instead}", not'
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        check_share("above", written)
