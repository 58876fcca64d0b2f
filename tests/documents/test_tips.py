"""When there is which tip, with which numbers; a golden document has what tips say."""

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
from torchprof_hooks.profiles.optimizers import OptimizerFacts
from torchprof_hooks.profiles.program import Program, ProgramFacts
from torchprof_hooks.profiles.step_history import PhaseOfStep, SlowStep, StepHistory
from torchprof_hooks.profiles.step_times import Bucket, StepTimes
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
    """Of the only tip; "" without any."""
    found = [tip.claim for tip in tips(profile, **program)]
    assert len(found) <= 1
    return "".join(found)


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
    assert claim(after(start_up, took(99))) == ""


# From when on something is told


def waiting(gradients_ms: float) -> Profile:
    cells: Cells = {
        ("(waiting for gradients)", "waiting"): ms(gradients_ms),
        ("(communication) broadcast", "communication"): ms(60),
    }
    return a_run(cells)


def recomputing(all_ms: float) -> Profile:
    cells: Cells = {
        ("Net > Net.a", "recompute"): ms(50, 10),
        ("Net > Net.b", "recompute"): ms(20, 10),
        ("Net > Net.b > tanh(8)", "recompute"): ms(all_ms - 70, 10),
    }
    return a_run(cells)


def reading(calls: int, **options: Any) -> Profile:
    """An element is read from a device so often."""
    cells: Cells = {("item(scalar)", "outside"): ms(100, calls)}
    return a_run(cells, {"item(scalar)": ("float32@mps",)}, **options)


def small(
    calls: int,
    each_us: float,
    *,
    steps: int = 10,
    device: str = "cpu",
    device_ms: float = 0,
    backward_ms: float = 0,
) -> Profile:
    """Functions that take so long each."""
    forward = ms(calls * each_us / 1000, calls, device_ms)
    cells: dict[Any, Totals] = {("Net > relu(8)", "forward"): forward}
    if backward_ms:
        cells["Net > relu(8)", "backward"] = ms(backward_ms, 12_000)
    return a_run(cells, {"relu(8)": (f"int8@{device}",)}, steps)


OF_OTHERS = "Waiting for other ranks takes 10.0 % of the run (0.100s)"
AT_B = "15.0 % of the run (0.150s), the most in Net.b (0.100s)"
SMALL = "1100 functions per step and their backward take 10.0us per call, 11.0 % of"
TURNS = StepTimes(first_steps=10, first_ns=10, evaluations=10, evaluation_ns=10)


TOLD: dict[str, tuple[Profile, str]] = {
    "waiting 4 % of the time": (waiting(40), OF_OTHERS),
    "waiting less": (waiting(39), ""),
    "recomputing 15 % of the time": (recomputing(150), AT_B),
    "recomputing less": (recomputing(149), ""),
    "a read in every other step": (reading(5), "0.5 times per step"),
    "fewer reads": (reading(4), ""),
    "or calls of the model": (reading(5, steps=0), "0.5 times per call of the model"),
    "in fewer of them": (reading(4, steps=0), ""),
    "in evaluation calls, too": (
        reading(60, step_times=TURNS),
        "3.0 times per step or evaluation call",
    ),
    "functions of less than 10 us": (small(11_000, 9.999), SMALL),
    "functions of 10 us": (small(11_000, 10), ""),
    "functions of less than 10 % of the time": (small(9_000, 9.999), ""),
    "more than 200 functions in a step": (small(11_000, 9.999, steps=54), "204 func"),
    "200 functions in a step": (small(11_000, 9.999, steps=55), ""),
    "with a short backward": (small(10_000, 10, backward_ms=119), "functions per step"),
    "with a longer backward": (small(10_000, 10, backward_ms=120), ""),
    "on a device that may be busy": (small(11_000, 9.5, device="cuda"), ""),
    "on a device that waits": (
        small(11_000, 9.5, device="cuda", device_ms=109),
        "func",
    ),
    "on a busy device": (small(11_000, 9.5, device="cuda", device_ms=110), ""),
}


@pytest.mark.parametrize("situation", TOLD)
def test_from_when_on_it_is_told(situation: str) -> None:
    profile, told = TOLD[situation]
    found = claim(profile)
    assert told in found
    assert bool(found) == bool(told)


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


# Settings

FUSIBLE = OptimizerFacts("Adam", 1, True, False, "cuda")


@pytest.mark.parametrize(
    ("changes", "took_ms", "is_told"),
    [
        ({}, 50, True),
        ({}, 49, False),
        ({"device": "cpu"}, 50, True),
        ({"device": "mps"}, 50, False),
        ({"device": ""}, 50, False),
        ({"is_fused": True}, 50, False),
        ({"can_fuse": False}, 50, False),
        ({"name": "SGD"}, 50, True),
        ({"name": "SGD", "device": "cpu"}, 50, False),
        ({"name": "Mine"}, 50, False),
    ],
    ids=str,
)
def test_optimizers(changes: dict[str, Any], took_ms: int, is_told: bool) -> None:
    optimizer = FUSIBLE._replace(**changes)
    cells: Cells = {(f"(optimizer) {optimizer.name}", "optimizer"): ms(took_ms, 10)}
    found = claim(a_run(cells), facts=ProgramFacts((optimizer,)))
    assert found.endswith(" for 1 tensor") == is_told
    assert bool(found) == is_told


def test_all_optimizers_of_a_class_are_counted() -> None:
    """The time is that of all of them."""
    cells: Cells = {("(optimizer) Adam", "optimizer"): ms(310, 80)}
    alike = FUSIBLE._replace(parameters=8, optimizers=8)
    others = (FUSIBLE._replace(device="mps", parameters=3), FUSIBLE._replace(name="X"))
    found = claim(a_run(cells), facts=ProgramFacts((alike, *others)))
    assert found.startswith("Adam takes 31.0 % ")
    assert found.endswith(" for 11 tensors of the 9 optimizers of this class")


# torch.compile


def graph(place: str, reason: str = "") -> CompiledGraph:
    return CompiledGraph("forward", place, "0/1", 0, 0, recompile_reason=reason)


def compiled(**facts: Any) -> str:
    return claim(a_run({}), compilation=CompilationSummary(timed=1, **facts))


def test_graph_breaks() -> None:
    once = GraphBreak("forward", "net.py:3", "print", 1)
    often = GraphBreak("", "", "long\n  " + "reason " * 40, 2)
    found = compiled(graph_breaks=(once, often))
    assert " 3 times, most at an unknown place (long reason re" in found
    assert found.endswith("reason...)")


def test_recompiles() -> None:
    graphs = (
        graph("net.py:1"),
        graph("net.py:1", "size mismatch at index 0"),
        graph("net.py:7", "Net.step == 1"),
        graph("net.py:7", "Net.step == 2"),
        graph("net.py:7", "Net.step == 2"),
    )
    most = "4 times, most often forward (net.py:7) (Net.step == 2)"
    assert compiled(graphs=graphs).endswith(most)
    [tip] = tips(a_run({}), compilation=CompilationSummary(timed=1, graphs=graphs))
    assert "give it as a tensor" in tip.remedy
    assert compiled(graphs=graphs[:1]) == ""


# Slow steps


def slow_run(
    *phases: PhaseOfStep, cells: Cells | None = None, step_ms: float = 10
) -> Profile:
    """One of 20 steps is slow; a step usually takes 1 ms in each phase."""
    duration_ns = sum(phase.self_ns for phase in phases)
    slow = SlowStep(7, duration_ns, len(phases) * 10**6, phases)
    later = (Bucket(1, 19, round(19e6 * step_ms)), Bucket(2, 1, duration_ns))
    run = a_run(cells or {}, steps=20, step_history=StepHistory(slowest=(slow,)))
    times = StepTimes(later=tuple(later))
    return run.with_parts(lambda part: replace(part, step_times=times))


def took(phase: Phase, milliseconds: int) -> PhaseOfStep:
    return PhaseOfStep(phase, milliseconds * 10**6, 10**6)


@pytest.mark.parametrize(
    ("phases", "wanted"),
    [
        ((took("garbage", 51), took("forward", 1)), "gc.freeze"),
        ((took("data", 61), took("forward", 41)), "prefetch_factor"),
        ((took("compiling", 41), took("outside", 31)), "dynamic=True"),
        ((took("data", 41), took("forward", 61)), None),  # less than half
        ((took("outside", 61), took("forward", 1)), None),  # what it is is not known
    ],
)
def test_a_reason_of_slow_steps_that_can_be_removed(
    phases: tuple[PhaseOfStep, ...], wanted: str | None
) -> None:
    tips = tips_of(slow_run(*phases))
    assert len(tips) == (wanted is not None)
    assert all(wanted is not None and wanted in tip.remedy for tip in tips)


def test_waiting_for_data_is_told_once() -> None:
    run = slow_run(took("data", 61), cells={("(data loading)", "data"): ms(150, 10)})
    [tip] = tips_of(run)
    assert tip.claim.startswith("Waiting for data")


def tips_of(profile: Profile) -> list[Tip]:
    return find_tips(view_of(profile))
