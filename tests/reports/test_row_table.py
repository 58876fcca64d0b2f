from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import FUNCTIONS, STEP, hand_built, own, table
from tests.profiles.test_merge import profiles
from torchprof_hooks import Profile
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import GROUPINGS, Grouping
from torchprof_hooks.reports.row_table import render


def test_rows_by_class() -> None:
    # Linear: forward 30 + 15, backward 40 + 20, recompute 14; Net: all of the modules.
    # Where there is no room for it, the column of recompute goes first.
    assert render(STEP, "class", width=80) == table("""
168.00ns wall, by class: own time; total: with the calls that they make
class                       calls  forward  backward      self     total     %
------------------------------------------------------------------------------
Linear                          6  45.00ns   60.00ns  119.00ns  119.00ns  70.8
(outside modules)                                      12.00ns   12.00ns   7.1
Block                           2   5.00ns             11.00ns   60.00ns   6.5
Net                             2  10.00ns    1.00ns   11.00ns  141.00ns   6.5
(optimizer) SGD                 2                       8.00ns    8.00ns   4.8
(backward outside modules)      2             4.00ns    4.00ns    4.00ns   2.4
(profiler)                      2                       3.00ns    3.00ns   1.8
""")
    header = render(STEP, "class").splitlines()[1]
    assert " ".join(header.split()) == (
        "class calls forward backward recompute self total %"
    )


def test_functions_and_the_rest_of_the_rows() -> None:
    # linear 20 + 11 + 12 + 22 + 35, dropout 9 + 14; 100 and 23 of 273.
    text = render(FUNCTIONS, "function", max_rows=2)

    assert [line.split("  ")[0] for line in text.splitlines()[3:]] == [
        "linear",
        "dropout",
        "... 11 more rows, 54.9 %",
    ]


def test_it_says_if_functions_were_not_measured() -> None:
    note = "(functions were not measured)"

    assert note in render(STEP, "function")
    assert note in render(STEP, "call")
    assert note not in render(STEP, "class")
    assert note not in render(FUNCTIONS, "function")


def test_device_times_and_compiled_regions() -> None:
    compiled = ModuleInfo("Net", compiled=True)
    profile = hand_built({("Net", "forward"): own(5, device_ns=9)}, {"Net": compiled})

    text = render(profile, "module")

    assert "device" in text
    assert "9.00ns" in text
    assert "Net [compiled]" in text


def test_an_unknown_grouping_is_refused() -> None:
    with pytest.raises(ValueError, match="by must be"):
        render(STEP, "layer")  # type: ignore[arg-type]


def test_a_narrow_table() -> None:
    assert max(map(len, render(FUNCTIONS, "call", width=50).splitlines())) <= 50


@given(profiles, st.sampled_from(GROUPINGS), st.integers(1, 9))
def test_any_profile_can_be_shown(
    profile: Profile, by: Grouping, max_rows: int
) -> None:
    assert render(profile, by, max_rows=max_rows)


def test_an_empty_profile_can_be_shown() -> None:
    assert render(Profile(), "module").startswith("0.00ns wall, by module")
