"""The report of a whole program, made of numbers by hand: golden documents have two as
they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.documents.found import block, column, table_in
from tests.documents.made import MS, Written, after, made, ms, with_unmeasured
from torchprof_hooks.documents.build import exit_report
from torchprof_hooks.documents.build.exit_report import (
    ReportLayout,
    program_report,
    program_text,
)
from torchprof_hooks.documents.document import Block, Facts, Table, Value
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.collectives import Collective
from torchprof_hooks.profiles.compilation import CompilationSummary
from torchprof_hooks.profiles.measured_steps import MeasuredSteps
from torchprof_hooks.profiles.memory import MemorySummary
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.program import Program
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.profiles.trace.device_step import DeviceStep

LINEAR = "linear(2x4, 4x4)"
INFOS: Mapping[str, ModuleInfo | str] = {
    "Net": ModuleInfo("Net", place="called first at train.py:9"),
    "Net.a": "Linear",
    "Net.b": "Linear",
    LINEAR: ModuleInfo("linear", "function", implementation="C"),
    "mse(2, 2)": ModuleInfo("mse", "function", implementation="Py"),
    "Judge": ModuleInfo("Judge", compiled=True),
}


def counted(totals: Totals, flops: int) -> Totals:
    return replace(totals, flops=flops)


CELLS: Written = {
    ("Net", "forward"): ms(50, 10),
    ("Net > Net.a", "forward"): ms(10, 10),
    (f"Net > Net.a > {LINEAR}", "forward"): counted(ms(100, 10), 640 * MS),
    (f"Net > Net.a > {LINEAR}", "backward"): counted(ms(200, 10), 640 * MS),
    ("Net > Net.b", "forward"): ms(10, 10),
    (f"Net > Net.b > {LINEAR}", "forward"): ms(130, 10),
    ("mse(2, 2)", "forward"): ms(20, 10),
    ("Judge", "forward"): ms(300, 20),
    ("(backward outside modules)", "backward"): ms(0, 10),
    ("(optimizer) SGD", "optimizer"): ms(80, 10),
    ("(data loading)", "data"): ms(60, 10),
    ("(outside modules)", "outside"): ms(40, 0),
}


def a_program(cells: Written = CELLS, steps: int = 10, **facts: Any) -> Profile:
    program = Program("train.py", 3000 * MS)
    return made(cells, INFOS, steps, **{"program": program, **facts})


PROGRAM = a_program()


def blocks(profile: Profile, **layout: Any) -> dict[str, Block]:
    """The blocks of the report, by name."""
    found = program_report(profile, ReportLayout(**layout)).blocks
    return dict(zip([block.name for block in found], found, strict=True))


def lines(profile: Profile, name: str, **layout: Any) -> list[str]:
    """The lines of one section."""
    return [*block(program_report(profile, ReportLayout(**layout)), Facts, name).lines]


def table(profile: Profile, name: str, **layout: Any) -> Table:
    return table_in(program_report(profile, ReportLayout(**layout)), name)


def rows(found: Table) -> dict[str, tuple[Value, ...]]:
    """The values of each row, by its name and phase, without the running total."""
    phases, *others = (c.values for c in found.columns if c.name != "sum_of_shares")
    rows = zip(found.labels, phases, *others, strict=True)
    return {f"{name} {phase}".rstrip(): tuple(row) for name, phase, *row in rows}


def titles(profile: Profile, **layout: Any) -> list[str]:
    return [block.title for block in blocks(profile, **layout).values()]


# Sections


def test_the_order_of_sections() -> None:
    assert titles(PROGRAM, with_memory=True) == [
        "Program profiling",
        "Function profiling",
        *("Class of Net", "Ops of Net", "Apply of Net"),
        "Function profiling",
        *("Class of Judge", "Ops of Judge", "Apply of Judge"),
        "Sum of all(2) printed profiles",
        *("Class", "Ops", "Apply"),
        *titles(PROGRAM)[13:15],  # trees of modules
        "Memory Profile",
        "Tips",
    ]


def test_sections_that_are_there_if_there_is_something_to_tell() -> None:
    program = Program(
        "train.py",
        compilation=CompilationSummary(timed=1, timed_ns=2 * MS),
    )
    exchanged = (Collective("all_reduce", calls=3),)
    step = DeviceStep(reason="no step was traced")
    found = blocks(a_program(program=program, collectives=exchanged, device_step=step))
    names = [*found]
    there = ["compilation", "communication", "device_idle"]
    assert names[names.index("compilation") :] == [*there, "tips"]
    assert not {*there} & {*blocks(PROGRAM)}


def test_memory() -> None:
    assert lines(PROGRAM, "memory_profile", with_memory=True) == [
        "memory was not measured"
    ]
    memory = MemorySummary("cpu", peak_bytes=2**20, peak_path=("Net",))
    measured = a_program(memory=memory)
    assert blocks(measured, with_memory=True)["memory"].title.startswith(
        "Memory: peak 1.00MB in Net"
    )
    assert "memory" not in blocks(measured)


@pytest.mark.parametrize(
    ("part", "failing"),
    [
        ("table_by", {"Class", "Ops", "Apply"}),
        ("_totals", {"Program profiling"}),
        ("find_tips", {"Tips"}),
    ],
)
def test_a_section_that_fails_says_so_and_others_are_there(
    part: str, failing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such luck")

    others = len(titles(PROGRAM))
    monkeypatch.setattr(exit_report, part, fail)
    found = program_report(PROGRAM, ReportLayout()).blocks
    said = "(failed: ValueError: no such luck)"
    failed = {b.title for b in found if isinstance(b, Facts) and said in b.lines}
    assert failed == failing
    assert len(found) == others


# What was run


START_UP = a_program({("Net", "forward"): ms(1000)}, 1, part="start-up")


def test_the_start_up_is_in_all_tables_or_in_none() -> None:
    whole = after(START_UP, replace(PROGRAM, overhead_ns=7 * MS))
    kept = lines(whole, "program")
    assert "Time measured: 2.000s" in kept
    assert "  forward: 1.600s (80.0 %)" in kept
    left_out = lines(whole, "program", ignore_first_call=True)
    assert "Time measured: 2.000s, 1.000s of it below" in left_out
    assert "  forward: 0.600s (60.0 %)" in left_out
    # Each says once what it is about.
    for found, what in ((kept, "the whole run"), (left_out, "the loop")):
        assert sum(what in line for line in found) == 1
    for name in ("class", "ops", "apply"):
        assert own_ns(table(whole, name)) == 2000 * MS
        assert own_ns(table(whole, name, ignore_first_call=True)) == 1000 * MS
    assert " of the whole run" in table(whole, "modules").title
    assert " of the loop" in table(whole, "modules", ignore_first_call=True).title
    assert " of the " not in table(PROGRAM, "modules").title
    # Of a run without a loop, all is told.
    assert own_ns(table(START_UP, "class", ignore_first_call=True)) == 1000 * MS


def own_ns(found: Table) -> int:
    return sum(filter(None, column(found, "self_ns")))


def test_traced_steps_are_in_no_table() -> None:
    traced = MeasuredSteps(traced=2, traced_ns=500 * MS)
    found = lines(a_program(measured=traced), "program")
    assert "Not in the tables: 2 traced steps, 0.500s" in found


@pytest.mark.parametrize("ignore_first_call", [False, True])
def test_what_was_not_measured_is_a_line_and_in_no_table(
    ignore_first_call: bool,
) -> None:
    some = with_unmeasured(PROGRAM, 90, 40_000 * MS, *[0.03] * 5)
    layout = ReportLayout(ignore_first_call=ignore_first_call)
    whole, found = (
        {block.name: block for block in program_report(each, layout).blocks}
        for each in (PROGRAM, some)
    )
    added = [*found.pop("program").lines]  # type: ignore[union-attr]
    known = [*whole.pop("program").lines]  # type: ignore[union-attr]
    assert found == whole
    text = "Not measured: 40.00sec in 90 steps"
    assert (text in added, text in known) == (True, False)
    steps = some.measured_steps
    assert any(line.startswith(f"{steps} of {steps + 90} steps") for line in added)
    assert any(line.startswith("Measured steps took 3.0 % longer") for line in added)


# Functions


def test_time_on_a_device() -> None:
    cells: Written = {("Net", "forward"): ms(50, 10, device_ms=30)}
    found = lines(a_program(cells, devices=("cuda:0",)), "function.Net")
    assert found[-1] == "Time on cuda:0: 0.030s (not a part of the above)"


def test_the_sum() -> None:
    small: Written = {("Tail", "forward"): ms(10), **CELLS}
    program = Program("train.py")
    found = made(small, {**INFOS, "Tail": "Tail"}, 10, program=program)
    assert lines(found, "sum") == [
        "Time in Net: 0.500s (49.5 %)",
        "Time in Judge: 0.300s (29.7 %)",
        "Time in 1 other function: 0.010s (1.0 %)",
        "Time outside of all: 0.200s (19.8 %)",
        "Sum: 1.010s",
    ]


# Class, Ops and Apply


@pytest.mark.parametrize("name", ["class", "ops", "apply"])
def test_columns_are_those_of_theano(name: str) -> None:
    assert [column.title for column in table(PROGRAM, name).columns] == [
        *("<phase>", "<% time>", "<sum %>", "<apply time>", "<time per call>"),
        *("<type>", "<#call>", "<#apply>", "<GFLOP/s>"),
    ]


def test_classes() -> None:
    found = table(PROGRAM, "class")
    assert rows(found) == {
        "Judge": (0.3, 300 * MS, 15 * MS, "compiled", 20, 1, None),
        "Linear": (0.25, 250 * MS, 12.5 * MS, "Py", 20, 2, 2.56),
        "Linear backward": (0.2, 200 * MS, None, "Py", 0, 2, 3.2),
        "(optimizer) SGD": (0.08, 80 * MS, 8 * MS, "", 10, 0, None),
        "(data loading)": (0.06, 60 * MS, 6 * MS, "", 10, 0, None),
        "(outside modules)": (0.06, 60 * MS, None, "", 0, 0, None),
        "Net": (0.05, 50 * MS, 5 * MS, "Py", 10, 1, None),
    }
    sums = [0.3, 0.55, 0.75, 0.83, 0.89, 0.95, 1.0]
    assert column(found, "sum_of_shares") == pytest.approx(sums)


def test_functions() -> None:
    found = rows(table(PROGRAM, "ops"))
    assert [*found][:2] == ["(modules, outside functions)", "linear"]
    assert found["linear"][1:6] == (230 * MS, 11.5 * MS, "C", 20, 2)
    assert found["(modules, outside functions)"][1:] == (370 * MS, None, "", 0, 0, None)
    assert found["mse"][1:] == (20 * MS, 2 * MS, "Py", 10, 1, None)


def test_calls_of_a_part() -> None:
    found = rows(table(PROGRAM, "apply.Net"))
    assert found == {
        f"Net.a: {LINEAR} backward": (0.4, 200 * MS, 20 * MS, "C", 10, 1, 3.2),
        f"Net.b: {LINEAR}": (0.26, 130 * MS, 13 * MS, "C", 10, 1, None),
        f"Net.a: {LINEAR}": (0.2, 100 * MS, 10 * MS, "C", 10, 1, 6.4),
        "(modules, outside functions)": (0.14, 70 * MS, None, "", 0, 0, None),
    }


@pytest.mark.parametrize(
    ("part", "own_ms"), [("", 1000), (".Net", 500), (".Judge", 300)]
)
def test_all_groupings_add_up_to_the_same(part: str, own_ms: int) -> None:
    for by in ("class", "ops", "apply"):
        found = table(PROGRAM, f"{by}{part}")
        assert own_ns(found) == own_ms * MS
        assert sum(found.shares) == pytest.approx(1)


def test_as_many_rows_and_as_wide_as_asked_for() -> None:
    found = blocks(PROGRAM, n_ops=3, n_apply=2)
    shown = [b.most for b in found.values() if isinstance(b, Table)][:3]
    assert shown == [3, 3, 2]
    text = program_text(PROGRAM, ReportLayout(n_ops=2, n_apply=1, width=90))
    assert "(remaining 5 rows account for 45.0 % of the runtime)" in text
    assert 80 <= max(map(len, text.splitlines())) <= 90


def test_nothing_measured() -> None:
    program = Program("x.py")
    nothing = program_report(Profile(program=program), ReportLayout())
    for name in ("class", "ops", "apply"):
        assert block(nothing, Facts, name).lines == ["(nothing was measured here)"]
    assert program_text(Profile())


def test_lengths_that_vary_are_one_row_of_apply() -> None:
    lengths = range(5, 45, 4)
    known = {
        f"linear({n}x4, 4x4)": ModuleInfo("linear", "function", shapes=((n, 4), (4, 4)))
        for n in lengths
    }
    cells: dict[Any, Totals] = {
        (f"Net > Net.a > {name}", "forward"): counted(ms(10), 640 * MS)
        for name in known
    }
    cells["Net", "forward"] = ms(20, 10)
    found = made(cells, {**INFOS, **known}, 10, program=Program("train.py"))
    ranged = "Net.a: linear([5..41]x4, 4x4)"
    apply = rows(table(found, "apply"))
    assert apply.keys() == {ranged, "(modules, outside functions)"}
    assert apply[ranged][1:] == (100 * MS, 10 * MS, "", 10, 1, 64.0)
