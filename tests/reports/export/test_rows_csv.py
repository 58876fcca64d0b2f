from __future__ import annotations

import csv
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import FUNCTIONS, STEP, hand_built, table, timed
from tests.profiles.test_merge import profiles
from torchprof_hooks import Profile
from torchprof_hooks.profiles.memory import MemorySummary
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import GROUPINGS, Grouping
from torchprof_hooks.reports.export.rows import render_csv as render


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text, newline="")))


def test_a_whole_file() -> None:
    profile = hand_built(
        {
            ("Net", "forward"): timed(10, 10),
            ("Net", "backward"): timed(30, 30),
            ("(outside modules)", "outside"): timed(5),
        },
        {"Net": "MyNet", "(outside modules)": ModuleInfo(kind="outside")},
    )

    assert render(profile) == table("""
name,class_name,kind,module,compiled,phase,calls,self_ns,cumulative_ns,mean_ns,std_ns,min_ns,max_ns
Net,MyNet,module,Net,False,forward,2,20,20,10.0,0.0,10,10
Net,MyNet,module,Net,False,backward,2,60,60,30.0,0.0,30,30
(outside modules),,outside,,False,outside,1,5,5,5.0,0.0,5,5
""")


def test_names_may_hold_anything() -> None:
    odd = 'a,"b"\nc;ü'
    profile = hand_built({(odd, "forward"): timed(1)}, {odd: "Net"})

    [row] = read(render(profile))

    assert row["name"] == odd


def test_columns_of_devices_and_bytes() -> None:
    profile = hand_built(
        {("Net", "forward"): timed(1)},
        {"Net": "Net"},
        devices=("cuda",),
        memory=MemorySummary("cuda:0"),
    )

    [row] = read(render(profile))

    assert row["device_self_ns"] == row["peak_bytes"] == "0"
    assert not {"device_self_ns", "peak_bytes"} & read(render(STEP))[0].keys()


def test_rows_by_function() -> None:
    forward = {
        row["name"]: row["self_ns"]
        for row in read(render(FUNCTIONS, "function"))
        if row["phase"] == "forward"
    }

    assert forward["linear"] == "31"  # 20 + 11
    assert forward["dropout"] == "9"


def test_an_unknown_grouping_is_refused() -> None:
    with pytest.raises(ValueError, match="by must be"):
        render(STEP, "layer")  # type: ignore[arg-type]


@given(profiles, st.sampled_from(GROUPINGS))
def test_the_column_of_own_times_adds_up(profile: Profile, by: Grouping) -> None:
    self_ns = sum(totals.self_ns for totals in profile.cells.values())

    assert sum(int(row["self_ns"]) for row in read(render(profile, by))) == self_ns
