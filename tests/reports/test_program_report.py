"""The report of a whole program, made of numbers by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from torchprof_hooks.capture.record.step_counter import StepCounter
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import (
    BACKWARD_NAME,
    DATA_NAME,
    OUTSIDE_NAME,
    Grouping,
    Phase,
)
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.profiles.program.strata import Strata
from torchprof_hooks.profiles.program.stratum import Stratum
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.reports.program import report
from torchprof_hooks.reports.program.groups import Tables, group_lines, items_of
from torchprof_hooks.reports.program.part import part_lines, sum_lines
from torchprof_hooks.reports.program.report import Layout, program_report
from torchprof_hooks.reports.program.totals import totals_lines

S = 10**9
MS = 10**6

LINEAR = "linear(2x4, 4x4)"
INFOS = {
    "Net": ModuleInfo("Net", place="called first at train.py:9"),
    "Net.a": ModuleInfo("Linear"),
    "Net.b": ModuleInfo("Linear"),
    LINEAR: ModuleInfo("linear", "function", implementation="C"),
    "mse(2, 2)": ModuleInfo("mse", "function", implementation="Py"),
    "Judge": ModuleInfo("Judge", compiled=True),
    "(optimizer) SGD": ModuleInfo(kind="optimizer"),
    DATA_NAME: ModuleInfo(kind="data"),
    OUTSIDE_NAME: ModuleInfo(kind="outside"),
    BACKWARD_NAME: ModuleInfo(kind="backward"),
}


def calls(count: int, milliseconds: float, flops: int = 0, device: int = 0) -> Totals:
    return Totals(
        calls=count,
        self_ns=round(milliseconds * MS),
        flops=flops,
        device_self_ns=device * MS,
    )


def stratum(steps: int, cells: dict[tuple[tuple[str, ...], Phase], Totals]) -> Stratum:
    """Of equal steps. One is the first."""
    wall_ns = sum(totals.self_ns for totals in cells.values())
    counter = StepCounter()
    counter.count(wall_ns, steps, is_first=steps == 1)
    times = counter.times()
    profile = Profile(cells, INFOS, wall_ns, steps, step_times=times)
    return Stratum(profile, steps, wall_ns)


FUNCTIONS = stratum(
    10,
    {
        (("Net",), "forward"): calls(10, 50),
        (("Net", "Net.a"), "forward"): calls(10, 10),
        (("Net", "Net.a", LINEAR), "forward"): calls(10, 100, flops=640 * MS),
        (("Net", "Net.a", LINEAR), "backward"): calls(10, 200, flops=640 * MS),
        (("Net", "Net.b"), "forward"): calls(10, 10),
        (("Net", "Net.b", LINEAR), "forward"): calls(10, 130),
        (("mse(2, 2)",), "forward"): calls(10, 20),
        (("Judge",), "forward"): calls(20, 300),
        ((BACKWARD_NAME,), "backward"): calls(10, 0),
        (("(optimizer) SGD",), "optimizer"): calls(10, 80),
        ((DATA_NAME,), "data"): calls(10, 60),
        ((OUTSIDE_NAME,), "outside"): calls(0, 40),
    },
)
PROGRAM = ProgramProfile("train.py", Strata(functions=FUNCTIONS), 3 * S, 7 * MS)


def text(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def test_totals() -> None:
    assert (
        text(totals_lines(PROGRAM))
        == """\
  Message: train.py
  Time since torchprof_hooks was loaded: 3.000s
  Time measured: 1.000s
    forward: 0.600s (60.0%)
    backward: 0.200s (20.0%)
    optimizers: 0.080s (8.0%)
    data loading: 0.060s (6.0%)
    other: outside of modules: 0.060s (6.0%)
  10 steps of 100.00ms (median 100.00ms, 90 % within 100.00ms)
  Measuring took about 0.007s (0.7%)"""
    )


def test_totals_of_steps_of_all_kinds() -> None:
    warm_up = stratum(1, {(("Net",), "forward"): calls(1, 1000)})
    phases = stratum(
        30,
        {
            (("Net",), "forward"): calls(30, 900),
            (("Judge",), "forward"): calls(60, 900),
            ((BACKWARD_NAME,), "backward"): calls(30, 600),
            ((OUTSIDE_NAME,), "outside"): calls(0, 600),
        },
    )
    disturbed = stratum(1, {((OUTSIDE_NAME,), "outside"): calls(0, 500)})
    evaluated = phases.profile.step_times._replace(evaluations=9, evaluation_ns=9 * MS)
    phases = phases._replace(profile=replace(phases.profile, step_times=evaluated))
    strata = Strata(warm_up, phases, functions=FUNCTIONS, disturbed=disturbed)
    lines = list(totals_lines(ProgramProfile("train.py", strata, 9 * S)))
    assert lines[-5:] == [
        "  42 steps: first 1.00sec, then 100.00ms (median 100.00ms, 90 % within "
        "100.00ms)",
        "  9 evaluation calls of 1.00ms",
        "  Not in the tables: 1 traced step, 0.500s",
        "  Modules were looked into in 11 of 42 steps and evaluation calls, functions "
        "in 11; the tables are estimates for all",
        "  Measuring took about 0.000s (0.0%)",
    ]
    starts = warm_up.profile.step_times._replace(
        evaluations=1,
        evaluation_ns=3 * S,
        first_evaluations=1,
        first_evaluation_ns=3 * S,
    )
    warm_up = warm_up._replace(profile=replace(warm_up.profile, step_times=starts))
    begins = ProgramProfile("train.py", replace(strata, warm_up=warm_up), 9 * S)
    calls_line = "  10 evaluation calls: first 3.00sec, then 1.00ms"
    assert calls_line in list(totals_lines(begins))
    without = ProgramProfile("train.py", strata, 9 * S, has_warm_up=False)
    assert "    forward: 3.400s (68.0%)" in lines
    assert "    forward: 2.400s (60.0%)" in list(totals_lines(without))


def test_steps_are_said_once_where_their_durations_are_not_known() -> None:
    # Files of old versions have none.
    old = FUNCTIONS._replace(profile=replace(FUNCTIONS.profile, step_times=StepTimes()))
    program = ProgramProfile("train.py", Strata(functions=old), 3 * S)
    steps = [line for line in totals_lines(program) if "step" in line]
    assert steps == ["  10 steps of 100.00ms"]
    empty = ProgramProfile("train.py", Strata(), 3 * S)
    assert "  0 steps" in list(totals_lines(empty))


def test_functions_that_were_not_looked_at_are_not_in_the_totals() -> None:
    warm_up = stratum(1, {(("Net",), "forward"): calls(1, 1000)})
    phases = stratum(9, {(("Net",), "forward"): calls(9, 900)})
    program = ProgramProfile("train.py", Strata(warm_up, phases), 9 * S)
    expected = (
        "  Modules were looked into in 1 of 10 steps; the tables are estimates for all"
    )
    assert expected in list(totals_lines(program))
    close = Strata(warm_up, modules=phases)
    program = ProgramProfile("train.py", close, 9 * S)
    assert "looked into" not in text(totals_lines(program))


def test_measuring_took_what_the_report_says_in_the_profile_too() -> None:
    assert PROGRAM.whole.overhead_ns == PROGRAM.overhead_ns == 7 * MS


def test_one_function() -> None:
    assert (
        text(part_lines(PROGRAM, "Net"))
        == """\
  Message: Net, called first at train.py:9
  Time in 10 calls to Net: 0.500s (0.050000s per call)
    forward: 0.300s (60.0%)
    backward: 0.200s (40.0%)
  Time in functions: 0.430s (86.0%), outside of them (Python, calling them): 0.070s"""
    )


def test_time_on_a_device() -> None:
    cells = {(("Net",), "forward"): calls(10, 50, device=30)}
    profile = replace(stratum(10, cells).profile, devices=("cuda",))  # type: ignore[arg-type]
    strata = Strata(functions=Stratum(profile, 10))
    lines = list(part_lines(ProgramProfile("x", strata, S), "Net"))
    assert lines[-1] == "  Time on cuda: 0.030s (not a part of the above)"


def test_the_sum() -> None:
    assert (
        text(sum_lines(PROGRAM, ["Net"]))
        == """\
  Time in Net: 0.500s (50.0%)
  Time in 1 other function: 0.300s (30.0%)
  Time outside of all: 0.200s (20.0%)
  Sum: 1.000s"""
    )


def table(by: Grouping, part: str = "", max_rows: int = 20) -> list[str]:
    lines = group_lines(Tables(PROGRAM, part), by, max_rows)
    return [" ".join(line.split()) for line in lines]


def test_classes() -> None:
    assert table("class") == [
        "<% time> <sum %> <apply time> <time per call> <type> <#call> <#apply> "
        "<GFLOP/s> <Class name>",
        "30.0% 30.0% 0.300s 1.500e-02s compiled 20 1 - Judge",
        "25.0% 55.0% 0.250s 1.250e-02s Py 20 2 2.56 Linear",
        "20.0% 75.0% 0.200s - Py 0 2 3.20 Linear backward",
        "8.0% 83.0% 0.080s 8.000e-03s - 10 - - (optimizer) SGD",
        "6.0% 89.0% 0.060s 6.000e-03s - 10 - - (data loading)",
        "6.0% 95.0% 0.060s - - 0 - - (outside modules)",
        "5.0% 100.0% 0.050s 5.000e-03s Py 10 1 - Net",
    ]


def test_functions() -> None:
    assert table("function")[1:] == [
        "37.0% 37.0% 0.370s - - 0 - - (modules, outside functions)",
        "23.0% 60.0% 0.230s 1.150e-02s C 20 2 2.78 linear",
        "20.0% 80.0% 0.200s 2.000e-02s C 10 2 3.20 linear backward",
        "8.0% 88.0% 0.080s 8.000e-03s - 10 - - (optimizer) SGD",
        "6.0% 94.0% 0.060s 6.000e-03s - 10 - - (data loading)",
        "4.0% 98.0% 0.040s - - 0 - - (outside modules)",
        "2.0% 100.0% 0.020s 2.000e-03s Py 10 1 - mse",
    ]


def test_calls_of_a_part_and_what_remains() -> None:
    assert table("call", "Net", max_rows=1)[1:] == [
        f"40.0% 40.0% 0.200s 2.000e-02s C 10 1 3.20 Net.a: {LINEAR} backward",
        "... (remaining 3 rows account for 60.00% (0.300s) of the runtime)",
    ]


@pytest.mark.parametrize("part", ["", "Net", "Judge"])
def test_all_groupings_add_up_to_the_same(part: str) -> None:
    tables = Tables(PROGRAM, part)
    whole_ns = {"": 1000 * MS, **PROGRAM.part_times_ns}[part]
    for by in ("class", "function", "call"):
        assert sum(item.self_ns for item in items_of(tables, by)) == whole_ns


def test_long_names_are_cut() -> None:
    lines = program_report(PROGRAM, Layout(width=90)).splitlines()
    tables = lines[lines.index("Class") : lines.index("Tips")]
    assert 88 <= max(map(len, tables)) <= 90


def test_nothing_measured() -> None:
    nothing = Tables(ProgramProfile("x", Strata(), S))
    kinds: tuple[Grouping, ...] = ("class", "function", "call")
    for by in kinds:
        lines = list(group_lines(nothing, by, 20))
        assert lines == ["   (nothing was measured here)"]


def titles(text: str) -> list[str]:
    lines = text.splitlines()
    return [
        line for line, below in pairwise(lines) if below in ("---", "=" * len(line))
    ]


def test_the_order_of_sections() -> None:
    tables = ["Class", "Ops", "Apply"]
    assert titles(program_report(PROGRAM, Layout(with_memory=True))) == [
        "Program profiling",
        "Function profiling",
        *tables,
        "Function profiling",
        *tables,
        "Sum of all(2) printed profiles",
        *tables,
        "Modules",
        "Memory Profile",
        "Tips",
    ]


def test_one_large_function_has_no_tables_of_its_own() -> None:
    cells = {
        key: totals
        for key, totals in FUNCTIONS.profile.cells.items()
        if key[0] != ("Judge",)
    }
    program = ProgramProfile("x", Strata(functions=stratum(10, cells)), S)
    assert titles(program_report(program)) == [
        "Program profiling",
        "Function profiling",
        "Class",
        "Ops",
        "Apply",
        "Modules",
        "Tips",
    ]


def test_a_section_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Iterator[str]:
        yield "a line"
        raise ValueError("no such luck")

    monkeypatch.setattr(report, "group_lines", fail)
    whole = program_report(PROGRAM)
    assert "Ops\n---\n(failed: ValueError: no such luck)" in whole
    assert text(totals_lines(PROGRAM)) in whole
    assert "Tips\n---\n" in whole


def test_lengths_that_vary_are_one_line_of_apply() -> None:
    names = [f"linear({length}x4, 4x4)" for length in range(5, 45, 4)]
    cells: dict[tuple[tuple[str, ...], Phase], Totals] = {
        (("Net", "Net.a", name), "forward"): calls(1, 10, flops=640 * MS)
        for name in names
    }
    cells[("Net",), "forward"] = calls(10, 20)
    known = {name: ModuleInfo("linear", "function") for name in names}
    looked_at = stratum(10, cells)
    modules = {**looked_at.profile.modules, **known}
    looked_at = looked_at._replace(profile=replace(looked_at.profile, modules=modules))
    others = stratum(140, {(("Net",), "forward"): calls(140, 1680)})
    strata = Strata(phases=others, functions=looked_at)
    program = ProgramProfile("train.py", strata, 3 * S)
    items = {item.name: item for item in items_of(Tables(program), "call")}
    line = items.pop("Net.a: linear([5..41]x4, 4x4)")
    # Each length was met once; how often that would have been in all steps nobody
    # knows, but how often it was any of them.
    assert (line.calls, line.self_ns, line.applies) == (150, 1500 * MS, 1)
    assert line.rate == 64.0
    assert set(items) == {"(modules, outside functions)"}
