"""Which rows the table of modules has where there is little room."""

from __future__ import annotations

import re
from typing import Any

from tests.helpers import hand_built, own
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.reports.hottest import hottest
from torchprof_hooks.reports.screen.modules import module_lines

MS = 10**6


def rows_of(profile: Profile, most: int) -> list[str]:
    """What the rows are called, and the mark."""
    hot = hottest(row for row in profile.rows() if row.kind == "module")
    lines = list(module_lines(profile, profile.tree(), hot, most, 120))[1:]
    marks = [" <- hottest" * line.text.endswith("<- hottest") for line in lines]
    names = ["".join(re.findall(r"^ *\S+: \S+", line.text)) for line in lines]
    return [name + mark for name, mark in zip(names, marks, strict=True)]


def profile_of(own_ms: dict[str, float]) -> Profile:
    cells: dict[Any, Totals] = {
        (path, "forward"): own(round(each * MS), 1) for path, each in own_ms.items()
    }
    names = {name for path in own_ms for name in path.split(" > ")}
    return hand_built(cells, {name: f"C{name.rpartition('.')[2]}" for name in names})


def test_a_layer_with_a_number_is_not_around_others_with_numbers() -> None:
    """`Net.3` is of the kind `Net.*`, as are the blocks around the hottest layers."""
    found = profile_of(
        {
            "Net": 0,
            "Net > Net.0": 4,
            "Net > Net.0 > Net.0.a": 40,
            "Net > Net.0 > Net.0.b": 50,
            "Net > Net.3": 1.3,
        }
    )
    assert rows_of(found, 4) == [
        "Net: CNet",
        "  0: C0",
        "    b: Cb <- hottest",
        "    a: Ca",
    ]
    assert rows_of(found, 5)[4:] == ["  3: C3"]


def test_the_hottest_layer_is_there_where_there_is_no_room_for_all_around() -> None:
    found = profile_of({"Net": 1, "Net > Net.a > Net.a.b > Net.a.b.c": 50})
    assert rows_of(found, 4)[0] == "Net: CNet"
    assert rows_of(found, 2) == ["Net.a.b: Cb", "  c: Cc <- hottest"]
    assert rows_of(found, 1) == ["Net.a.b.c: Cc <- hottest"]
    assert rows_of(found, 0) == []


def test_of_two_places_the_one_where_it_takes_most_is_shown() -> None:
    found = profile_of(
        {
            "Net > Net.a > Net.act": 20,
            "Net > Net.b > Net.act": 30,
            "Net > Net.b": 1,
            "Net > Net.a": 25,
        }
    )
    hot = "    Net.act: Cact <- hottest"
    assert rows_of(found, 3) == ["Net: CNet", "  b: Cb", hot]
