"""The report of a whole program, made of numbers by hand: golden documents have two as
they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.build import MS, Written, after, ms, profile_of
from tests.documents.found import block, column, exit_document, table_in
from torchprof_hooks.documents.document import Block, Facts, Table, Value
from torchprof_hooks.documents.report import program_text
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.program import Program
from torchprof_hooks.profiles.totals import Totals

LINEAR = "linear(2x4, 4x4)"
INFOS: Mapping[str, ModuleInfo | str] = {
    "Net": ModuleInfo("Net", place="called first at train.py:9"),
    "Net.a": "Linear",
    "Net.b": "Linear",
    LINEAR: ModuleInfo("linear", "function", implementation="C"),
    "mse(2, 2)": ModuleInfo("mse", "function", implementation="Py"),
    "Judge": ModuleInfo("Judge", compiled=True),
    "Tail": "Tail",
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
    return profile_of(cells, INFOS, steps, **{"program": program, **facts})


PROGRAM = a_program()


def blocks(profile: Profile, **layout: Any) -> dict[str, Block]:
    """The blocks of the report, by name."""
    found = exit_document(profile, **layout).blocks
    return dict(zip([block.name for block in found], found, strict=True))


def lines(profile: Profile, name: str, **layout: Any) -> list[str]:
    """The lines of one section."""
    return [*block(exit_document(profile, **layout), Facts, name).lines]


def table(profile: Profile, name: str, **layout: Any) -> Table:
    return table_in(exit_document(profile, **layout), name)


def rows(found: Table) -> dict[str, tuple[Value, ...]]:
    """The values of each row, by its name and phase, without the running total."""
    phases, *others = (c.values for c in found.columns if c.name != "sum_of_shares")
    rows = zip(found.labels, phases, *others, strict=True)
    return {f"{name} {phase}".rstrip(): tuple(row) for name, phase, *row in rows}


# What was run


START_UP = a_program(
    {("Net", "forward"): ms(990), ("Tail", "forward"): ms(10)}, 1, part="start-up"
)


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


# Functions


# Class, Ops and Apply


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


def test_nothing_measured() -> None:
    program = Program("x.py")
    nothing = exit_document(Profile(program=program))
    for name in ("class", "ops", "apply"):
        assert block(nothing, Facts, name).lines == ["(nothing was measured here)"]
    assert program_text(Profile())


def test_many_shapes_are_one_row_of_apply() -> None:
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
    found = profile_of(cells, {**INFOS, **known}, 10, program=Program("train.py"))
    common = "Net.a: linear (10 shapes)"
    apply = rows(table(found, "apply"))
    assert apply.keys() == {common, "(modules, outside functions)"}
    assert apply[common][1:] == (100 * MS, 10 * MS, "", 10, 1, 64.0)
