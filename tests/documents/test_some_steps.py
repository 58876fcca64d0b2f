"""Of a run of which some steps were measured, all that is made of a profile is about
these: as if there had been no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.build import MS, with_unmeasured
from tests.documents.found import column, exit_document
from tests.documents.runs import RUN
from torchprof_hooks.documents.build.compare import comparison_document
from torchprof_hooks.documents.build.rows import rows_table
from torchprof_hooks.documents.document import Table
from torchprof_hooks.documents.export.stacks import render_speedscope
from torchprof_hooks.documents.render.json import json_of
from torchprof_hooks.documents.report import rows_report, to_json
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.compare import compare
from torchprof_hooks.profiles.run_times import call_times, compared_part

#: 45 s in 995 steps, in front of measured ones that took 2 % longer.
SOME: Final = with_unmeasured(RUN, 995, 45_000 * MS, *[0.02] * 5)


def compared(profile: Profile) -> Any:
    found = json.loads(json_of(comparison_document(compare(RUN, profile))))
    del found["facts"]["measured_now"]
    return found


OF_MEASURED: Final[dict[str, Callable[[Profile], object]]] = {
    "a flame graph": render_speedscope,
    "scalars": lambda profile: profile.scalars(),
    "rows": lambda profile: rows_report(profile, "class"),
    "utilisation": lambda profile: profile.utilisation,
    "throughput": lambda profile: profile.items_per_second,
    "phases": lambda profile: profile.phase_times_ns(),
    "times that are compared": lambda profile: call_times(
        compared_part(profile), "module"
    ),
    "a comparison": compared,
    "tables of a program": lambda profile: [
        (block.name, block.columns)
        for block in exit_document(profile).blocks
        if isinstance(block, Table)
    ],
}


@pytest.mark.parametrize("made", OF_MEASURED.values(), ids=OF_MEASURED)
def test_it_is_of_the_measured_steps(made: Callable[[Profile], object]) -> None:
    assert made(SOME) == made(RUN)


def test_a_report_for_programs_tells_both_numbers() -> None:
    some, whole = json.loads(to_json(SOME)), json.loads(to_json(RUN))
    added = {
        "unmeasured_steps": 995,
        "unmeasured_ns": 45_000 * MS,
        "longer": {"blocks": 5, "median": 0.02, "low": 0.02, "high": 0.02},
    }
    assert some["numbers"] == {**whole["numbers"], **added}
    assert whole["numbers"]["steps"] == 5
    text = "not measured: 45.00sec in 995 steps"
    assert some["tables"]["phases"].pop("notes") == [text]
    assert whole["tables"]["phases"].pop("notes") == []
    for part in ("answers", "tables", "tips", "warnings"):
        assert some[part] == whole[part]


def test_own_times_of_a_data_frame_add_up_to_the_wall_time() -> None:
    table = rows_table(SOME, "module")
    own = column(table, "self_ns")
    assert own[table.labels.index("(not measured)")] == 45_000 * MS
    assert sum(int(ns or 0) for ns in own) == SOME.wall_ns
