"""The report of a whole program, made of numbers by hand: golden documents have two as
they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.build import MS, Written, ms, profile_of
from tests.documents.found import block, exit_document, table_in, values
from torchprof_hooks.documents.document import Facts
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


START_UP = a_program(
    {("Net", "forward"): ms(990), ("Tail", "forward"): ms(10)}, 1, part="start-up"
)


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
    apply = table_in(exit_document(found), "apply")
    assert values(apply, "self_ns") == {
        "Net.a: linear (10 shapes)": 100 * MS,
        "(modules, outside functions)": 20 * MS,
    }
