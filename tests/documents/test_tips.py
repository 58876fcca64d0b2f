"""When there is which tip, with which numbers; a golden document has what tips say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.build import ms, profile_of
from torchprof_hooks.documents.build.tips import find_tips
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.documents.document import Tip
from torchprof_hooks.profile_type import Profile
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
    return profile_of(every, {**MODULES, **functions}, steps, **facts)


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
TURNS = StepTimes(first_steps=10, first_ns=10, evaluations=10, evaluation_ns=10)

#: What is told just where a rule begins to hold, and what is just below.
RULES: dict[str, tuple[Profile, str, Profile]] = {
    "waiting for gradients": (waiting(40), OF_OTHERS, waiting(39)),
    "recomputing": (recomputing(150), AT_B, recomputing(149)),
    "reads of a device": (reading(5), "0.5 times per step", reading(4)),
    "reads in calls of the model": (
        reading(5, steps=0),
        "0.5 times per call of the model",
        reading(4, steps=0),
    ),
    "reads in evaluation calls, too": (
        reading(60, step_times=TURNS),
        "3.0 times per step or evaluation call",
        reading(0),
    ),
    "how short functions are": (
        small(11_000, 9.999),
        "1100 functions per step and their backward take 10.0us per call, 11.0 % of",
        small(11_000, 10),
    ),
    "how many functions a step has": (
        small(11_000, 9.999, steps=54),
        "204 func",
        small(11_000, 9.999, steps=55),
    ),
    "a short backward": (
        small(10_000, 10, backward_ms=119),
        "functions per step",
        small(10_000, 10, backward_ms=120),
    ),
    "a device that waits": (
        small(11_000, 9.5, device="cuda", device_ms=109),
        "func",
        small(11_000, 9.5, device="cuda", device_ms=110),
    ),
}


@pytest.mark.parametrize(("above", "told", "below"), RULES.values(), ids=RULES)
def test_from_when_on_it_is_told(above: Profile, told: str, below: Profile) -> None:
    assert told in claim(above)
    assert claim(below) == ""


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
        ({"device": "mps"}, 50, False),
        ({"is_fused": True}, 50, False),
        ({"can_fuse": False}, 50, False),
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


# torch.compile


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


def tips_of(profile: Profile) -> list[Tip]:
    return find_tips(view_of(profile))
