"""When there is which tip, with which numbers; golden documents have what tips say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.documents.made import after, made, ms
from tests.profile_of import profile_of
from torchprof_hooks.documents.build.tips import find_tips
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.documents.document import Tip
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.compilation import (
    CompilationSummary,
    CompiledGraph,
    GraphBreak,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.program import OptimizerFacts, Program, ProgramFacts
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.totals import Totals

Cells = Mapping[tuple[str, Phase], Totals]

MODULES: Mapping[str, ModuleInfo | str] = {
    "Net": "Net",
    "Net.a": "Block",
    "Net.b": "Block",
    "(waiting for gradients)": ModuleInfo(kind="waiting"),
    "(communication) broadcast": ModuleInfo(kind="communication"),
    **{
        f"(optimizer) {name}": ModuleInfo(kind="optimizer")
        for name in ("Adam", "AdamW", "SGD", "Mine")
    },
}


def a_run(
    cells: Cells,
    inputs: Mapping[str, tuple[str, ...]] | None = None,
    steps: int = 10,
    **facts: Any,
) -> Profile:
    """Steps that take a second in all: what `cells` leave is in Net itself.

    inputs: of functions, by their names.
    """
    rest_ms = 1000 - sum(totals.self_ns for totals in cells.values()) / 1e6
    functions = {
        name: ModuleInfo(name.partition("(")[0], "function", inputs=types)
        for name, types in (inputs or {}).items()
    }
    every = {("Net", "forward"): ms(rest_ms, 10), **cells}
    return made(every, {**MODULES, **functions}, steps, **facts)


def tips(profile: Profile, **program: Any) -> list[Tip]:
    """Tips on a run of a program."""
    return find_tips(view_of(replace(profile, program=Program("x.py", **program))))


def claim(profile: Profile, **program: Any) -> str:
    """Of the only tip."""
    (tip,) = tips(profile, **program)
    return tip.claim


def test_nothing_to_say() -> None:
    assert tips(a_run({})) == tips(profile_of()) == []
    assert find_tips(view_of(a_run({}))) == find_tips(view_of(profile_of())) == []


def test_each_tip_is_there_once_and_in_order() -> None:
    cells: Cells = {
        ("(data loading)", "data"): ms(450),
        ("(optimizer) AdamW", "optimizer"): ms(120),
    }
    optimizers = (OptimizerFacts("AdamW", 150, True, False, "cpu"),)
    facts = ProgramFacts(optimizers, detects_anomalies=True)
    found = tips(a_run(cells), facts=facts)
    beginnings = ["Waiting for data", "Autograd's anomaly detection", "AdamW takes"]
    for tip, beginning in zip(found, beginnings, strict=True):
        assert tip.claim.startswith(beginning)


def test_shares_are_of_the_loop_where_that_is_known() -> None:
    def took(data_ms: float, **options: Any) -> Profile:
        return a_run({("(data loading)", "data"): ms(data_ms)}, **options)

    start_up = took(900, steps=1, part="start-up")
    assert "90.0 % of the run (0.900s)" in claim(start_up)
    assert "10.0 % of the run (0.100s)" in claim(took(100))
    assert "10.0 % of the loop (0.100s)" in claim(after(start_up, took(100)))
    assert tips(after(start_up, took(99))) == []


# The loop


@pytest.mark.parametrize(("waiting_ms", "is_told"), [(40, True), (39, False)])
def test_waiting_for_other_processes(waiting_ms: int, is_told: bool) -> None:
    cells: Cells = {
        ("(waiting for gradients)", "waiting"): ms(waiting_ms),
        ("(communication) broadcast", "communication"): ms(60),
    }
    found = tips(a_run(cells))
    assert len(found) == is_told
    most = "the most in (communication) broadcast (0.060s)"
    assert all(tip.claim.endswith(most) for tip in found)


READS: Cells = {
    ("item(scalar)", "outside"): ms(100, 10),
    ("Net > __bool__(1)", "forward"): ms(200, 20),
    ("Net > getitem(8x4, 8)", "forward"): ms(10, 10),
    ("Net > where(8)", "forward"): ms(10, 10),
}


def test_reads_from_a_device() -> None:
    inputs = {
        "item(scalar)": ("float32@cuda",),
        "__bool__(1)": ("bool@cuda",),
        "getitem(8x4, 8)": ("float32@cuda", "bool@cuda"),
        "where(8)": ("bool@cuda",),
    }
    found = claim(a_run(READS, inputs))
    assert "about 5.0 times per step (__bool__ 2.0, item 1.0, getitem 1.0" in found
    assert "32.0 % of the run (0.320s), the most in Net: __bool__(1)" in found


def test_what_does_not_wait_for_a_device() -> None:
    on_cpu = {
        "item(scalar)": ("float32@cpu",),
        "__bool__(1)": ("bool@cpu",),
        "getitem(8x4, 8)": ("float32@cuda", "int64@cuda"),
        "where(8)": ("bool@cuda", "float32@cuda"),
    }
    assert tips(a_run(READS, on_cpu)) == []
    assert tips(a_run(READS)) == []  # nobody knows


@pytest.mark.parametrize(("calls", "is_told"), [(5, True), (4, False)])
def test_how_often_a_device_is_read(calls: int, is_told: bool) -> None:
    cells: Cells = {("item(scalar)", "outside"): ms(100, calls)}
    inputs = {"item(scalar)": ("float32@mps",)}
    assert bool(tips(a_run(cells, inputs))) == is_told
    without_steps = tips(a_run(cells, inputs, steps=0))
    assert len(without_steps) == is_told
    assert all("0.5 times per call of the model" in tip.claim for tip in without_steps)


def test_evaluation_calls_are_turns_like_steps() -> None:
    times = StepTimes(first_steps=10, first_ns=10, evaluations=10, evaluation_ns=10)
    cells: Cells = {("item(scalar)", "outside"): ms(100, 60)}
    inputs = {"item(scalar)": ("float32@cuda",)}
    found = claim(a_run(cells, inputs, step_times=times))
    assert " 3.0 times per step or evaluation call " in f"{found} "


def small(calls: int, each_us: float, device_ms: float = 0) -> dict[Any, Totals]:
    return {("Net > relu(8)", "forward"): ms(calls * each_us / 1000, calls, device_ms)}


@pytest.mark.parametrize(
    ("calls", "each_us", "is_told"),
    [
        (2_010, 9.999, False),  # 2 % of the time
        (9_000, 9.999, False),
        (11_000, 9.999, True),
        (11_000, 10, False),
    ],
)
def test_small_functions(calls: int, each_us: float, is_told: bool) -> None:
    found = tips(a_run(small(calls, each_us), {"relu(8)": ("int8@cpu",)}))
    assert len(found) == is_told
    for tip in found:
        assert "1100 functions per step" in tip.claim
        assert "10.0us per call, 11.0 % of" in tip.claim


def test_small_functions_with_a_long_backward() -> None:
    for backward_ms, is_told in ((119, True), (120, False)):
        cells = small(10_000, 10)
        cells["Net > relu(8)", "backward"] = ms(backward_ms, 12_000)
        assert bool(tips(a_run(cells))) == is_told


@pytest.mark.parametrize(("steps", "is_told"), [(55, False), (54, True)])
def test_how_many_small_functions(steps: int, is_told: bool) -> None:
    # 200 and 203.7 per step
    assert bool(tips(a_run(small(11_000, 9.999), steps=steps))) == is_told


@pytest.mark.parametrize(
    ("device_ms", "is_told"), [(0, False), (109, True), (110, False)]
)
def test_small_functions_on_a_device(device_ms: int, is_told: bool) -> None:
    """How busy it is has to be known."""
    profile = a_run(small(11_000, 9.5, device_ms), {"relu(8)": ("int8@cuda",)})
    assert bool(tips(profile)) == is_told


# Settings

FUSIBLE = OptimizerFacts("Adam", 1, True, False, "cuda")


@pytest.mark.parametrize(
    ("optimizer", "took_ms", "is_told"),
    [
        (FUSIBLE, 50, True),
        (FUSIBLE, 49, False),
        (FUSIBLE._replace(device="cpu"), 50, True),
        (FUSIBLE._replace(device="mps"), 50, False),
        (FUSIBLE._replace(device=""), 50, False),
        (FUSIBLE._replace(is_fused=True), 50, False),
        (FUSIBLE._replace(can_fuse=False), 50, False),
        (FUSIBLE._replace(name="SGD"), 50, True),
        (FUSIBLE._replace(name="SGD", device="cpu"), 50, False),
        (FUSIBLE._replace(name="Mine"), 50, False),
    ],
)
def test_optimizers(optimizer: OptimizerFacts, took_ms: int, is_told: bool) -> None:
    cells: Cells = {(f"(optimizer) {optimizer.name}", "optimizer"): ms(took_ms, 10)}
    found = tips(a_run(cells), facts=ProgramFacts((optimizer,)))
    assert len(found) == is_told
    assert all(tip.claim.endswith(" for 1 tensor") for tip in found)


def test_all_optimizers_of_a_class_are_counted() -> None:
    """The time is that of all of them."""
    cells: Cells = {("(optimizer) Adam", "optimizer"): ms(310, 80)}
    alike = FUSIBLE._replace(parameters=8, optimizers=8)
    others = (FUSIBLE._replace(device="mps", parameters=3), FUSIBLE._replace(name="X"))
    found = claim(a_run(cells), facts=ProgramFacts((alike, *others)))
    assert found.startswith("Adam takes 31.0 % ")
    assert found.endswith(" for 11 tensors of the 9 optimizers of this class")


@pytest.mark.parametrize(("recompute_ms", "is_told"), [(150, True), (149, False)])
def test_recomputing(recompute_ms: int, is_told: bool) -> None:
    cells: Cells = {
        ("Net > Net.a", "recompute"): ms(50, 10),
        ("Net > Net.b", "recompute"): ms(20, 10),
        ("Net > Net.b > tanh(8)", "recompute"): ms(recompute_ms - 70, 10),
    }
    found = tips(a_run(cells))
    assert len(found) == is_told
    most = "15.0 % of the run (0.150s), the most in Net.b (0.100s)"
    assert all(tip.claim.endswith(most) for tip in found)


# torch.compile


def graph(place: str, reason: str = "", failure: str = "") -> CompiledGraph:
    return CompiledGraph(
        "forward", place, "0/1", 0, 0, recompile_reason=reason, failure=failure
    )


def compiled(**facts: Any) -> list[Tip]:
    return tips(a_run({}), compilation=CompilationSummary(timed=1, **facts))


def test_graph_breaks() -> None:
    once = GraphBreak("forward", "net.py:3", "print", 1)
    often = GraphBreak("", "", "long\n  " + "reason " * 40, 2)
    (tip,) = compiled(graph_breaks=(once,))
    assert tip.claim.endswith("1 time, most at forward (net.py:3) (print)")
    (tip,) = compiled(graph_breaks=(once, often))
    assert " 3 times, most at an unknown place (long reason re" in tip.claim
    assert tip.claim.endswith("reason...)")


def test_recompiles() -> None:
    graphs = (
        graph("net.py:1"),
        graph("net.py:1", "size mismatch at index 0"),
        graph("net.py:7", "Net.step == 1"),
        graph("net.py:7", "Net.step == 2"),
        graph("net.py:7", "Net.step == 2"),
    )
    (tip,) = compiled(graphs=graphs)
    assert tip.claim.endswith("4 times, most often forward (net.py:7) (Net.step == 2)")
    assert "give it as a tensor" in tip.remedy
    assert compiled(graphs=graphs[:1]) == []


def test_what_could_not_be_compiled() -> None:
    (tip,) = compiled(graphs=(graph("net.py:1", failure="Unsupported: generator"),))
    assert tip.claim.endswith("forward (net.py:1) (Unsupported: generator)")
