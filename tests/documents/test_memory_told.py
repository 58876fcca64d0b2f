"""What is said of the memory of a run, at its peak and when it ran out, and what is
not: golden documents have the words."""

from __future__ import annotations

from dataclasses import replace

from tests.build import profile_of, timed
from torchprof_hooks import Profile
from torchprof_hooks.documents.report import program_text
from torchprof_hooks.profiles.memory import (
    HeldMemory,
    MemoryFailure,
    MemorySummary,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.optimizers import OptimizerFacts
from torchprof_hooks.profiles.program import Program, ProgramFacts
from torchprof_hooks.profiles.totals import Totals

MB = 2**20
PAIRS = "sub(2048x1x128, 1x2048x128)"
HELD = (
    HeldMemory(("Net", "Net.relu"), "forward", "activation", 40 * MB),
    HeldMemory(("(optimizer) Adam",), "optimizer", "optimizer state", 20 * MB),
)


def ran_out(requested_bytes: int, shapes: tuple[tuple[int, ...], ...]) -> Profile:
    """A program with much time in Adam, in which the distances of all pairs are
    refused."""
    path = ("Net", "Net.distance", PAIRS)
    failure = MemoryFailure(requested_bytes, path, "forward", HELD)
    cells: dict[tuple[str, Phase], Totals] = {
        ("Net", "forward"): timed(10),
        ("Net > Net.relu > relu(2048x64)", "forward"): timed(50),
        (f"Net > Net.distance > {PAIRS}", "forward"): timed(1),
        ("(optimizer) Adam", "optimizer"): timed(100),
    }
    modules: dict[str, ModuleInfo | str] = {
        "Net": "Net",
        "Net.relu": "ReLU",
        "Net.distance": "Distance",
        "relu(2048x64)": ModuleInfo("relu", "function", shapes=((2048, 64),)),
        PAIRS: ModuleInfo("sub", "function", shapes=shapes),
        "(optimizer) Adam": ModuleInfo(kind="optimizer"),
    }
    facts = ProgramFacts((OptimizerFacts("Adam", 16, True, False, "cpu"),))
    memory = MemorySummary("cpu", 60 * MB, ("Net",), at_peak=HELD, failure=failure)
    program = Program("train.py", facts=facts)
    return profile_of(cells, modules, steps=2, memory=memory, program=program)


TWICE = ((2048, 1, 128), (1, 2048, 128))


def test_when_memory_ran_out_nothing_is_said_of_time() -> None:
    screen = ran_out(2048 * MB, TWICE).report()
    for time in ("Most memory", "Hottest", "Where the time goes", "fused=True"):
        assert time not in screen


def test_a_small_request_is_about_what_is_in_use() -> None:
    screen = " ".join(ran_out(2 * MB, TWICE).report().split())
    assert "(forward), with 60.00MB in use: activations 40.00MB" in screen
    assert "Tip: Activations were 66.7 % of the memory when it ran out" in screen
    assert "One tensor" not in screen


def test_what_is_about_memory_comes_before_what_is_about_time() -> None:
    found = ran_out(2048 * MB, TWICE)
    report = program_text(found, with_memory=True)
    for text in (report, found.report(full=True)):
        memory = text.index("Memory in use when it ran out")
        assert text.count("Memory in use when it ran out") == 1
        assert memory < text.index("Tip: One tensor") < text.index("at the peak, by")
        assert text.index("at the peak, by") < text.index("Modules: time")
    assert report.startswith("Memory in use when it ran out")
    went_on = replace(found.memory, failure=None)  # type: ignore[type-var]
    usual = program_text(replace(found, memory=went_on), with_memory=True)
    assert usual.startswith("Program profiling")
    assert "fused=True" in usual


def contrastive(shapes: tuple[tuple[int, ...], ...]) -> Profile:
    """A run in which the distances of all pairs are most of the memory."""
    path = ("Net", "Net.distance", PAIRS)
    held = (*HELD, HeldMemory(path, "forward", "temporary", 90 * MB))
    found = ran_out(1, shapes)
    return replace(found, memory=MemorySummary("cpu", 150 * MB, path, at_peak=held))
