from __future__ import annotations

import re

import pytest

from torchprof_hooks.profiles.options import check_share, parse_share


@pytest.mark.parametrize(
    ("written", "share"),
    [
        ("2%", 0.02),
        ("0.02", 0.02),
        (0.02, 0.02),
        ("2.5 %", 0.025),
        (".5%", 0.005),
        ("0.5%", 0.005),
        ("0", 0.0),
        ("0%", 0.0),
        ("1%", 0.01),
        ("1", 1.0),
        (1, 1.0),
        ("5", 0.05),
        (5, 0.05),
        ("100", 1.0),
        ("100%", 1.0),
        ("1000%", 10.0),
        (1e-05, 1e-05),
        (" 3% ", 0.03),
    ],
)
def test_both_notations(written: str | float, share: float) -> None:
    assert parse_share(written) == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize(
    "written",
    ["", "%", "-5%", "+5%", "5%%", "nan", "inf%", "-0.1", "half", "1e999", "\u0665%"],
)
def test_what_is_no_share(written: str) -> None:
    with pytest.raises(ValueError, match=r'^a share, "2%" or 0\.02$'):
        parse_share(written)


def test_a_bare_one_is_one_per_cent_to_some_and_all_to_others() -> None:
    assert check_share("above", "1%") == 0.01
    assert check_share("above", "100%") == 1.0
    assert check_share("above", "0.05") == check_share("above", "5") == 0.05
    message = """above must be "1%" or "100%", as 1 may mean either, not '1'"""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_share("above", "1")
    with pytest.raises(ValueError, match=r'^above must be a share, "2%" or 0\.02, not'):
        check_share("above", "none")
    assert check_share("limit", "1", is_limit=True) == 1.0
    assert check_share("limit", "none", is_limit=True) == 1.0
