"""Profiles that several tests make documents of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.build import MS, Cells, after, ms, profile_of, with_fields
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.memory import (
    MEMORY_KINDS,
    Checkpointing,
    GrowingMemory,
    HeldMemory,
    MemoryFailure,
    MemoryKind,
    MemoryPoint,
    MemoryStep,
    MemorySummary,
    MemoryTotals,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.optimizers import OptimizerFacts
from torchprof_hooks.profiles.program import Program, ProgramFacts
from torchprof_hooks.profiles.step_times import Bucket, StepTimes
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.profiles.trace.device_step import DeviceStep, DeviceUse
from torchprof_hooks.profiles.trace.kernels import Kernel, KernelRow

KB, MB = 1024, 1024**2

NAMES: dict[str, ModuleInfo | str] = {
    "LM": ModuleInfo("LM", place="called first at train.py:31"),
    **{f"LM.blocks.{n}": "Block" for n in range(4)},
    **{f"LM.blocks.{n}.mlp": "Linear" for n in range(4)},
    **{f"LM.blocks.{n}.norm": "LayerNorm" for n in range(4)},
    "loss(8)": ModuleInfo("loss", "function", place="called first at train.py:32"),
}


def language_model(calls: int, outside_ms: float, **facts: Any) -> Profile:
    """Forward 2 + 4 * (1 + 5 + 0.5) = 28 ms, 3 in the loss, backward 40, the optimizer
    8."""
    cells: Cells = {("LM", "forward"): ms(2, calls)}
    for n in range(4):
        block = f"LM.blocks.{n}"
        path = f"LM > {block}"
        mlp = f"{path} > {block}.mlp"
        cells[path, "forward"] = ms(1, calls)
        cells[mlp, "forward"] = ms(0, calls)
        cells[f"{mlp} > linear(8x4, 4x4)", "forward"] = ms(5, calls)
        cells[f"{mlp} > linear(8x4, 4x4)", "backward"] = ms(10)
        cells[f"{path} > {block}.norm", "forward"] = ms(0.5, calls)
    cells["loss(8)", "forward"] = ms(3, calls)
    cells["(optimizer) SGD", "optimizer"] = ms(8, calls)
    cells["(outside modules)", "outside"] = ms(outside_ms, 0)
    return profile_of(cells, NAMES, **facts)


START = language_model(
    1, 921, part="start-up", steps=1, step_times=StepTimes(1, 1000 * MS)
)
LOOP = language_model(
    4,
    21,
    steps=4,
    step_times=StepTimes(
        later=(Bucket(1, 3, 60 * MS), Bucket(2, 1, 40 * MS)),
        evaluations=2,
        evaluation_ns=6 * MS,
    ),
    overhead_ns=3 * MS,
)
RUN = after(START, LOOP)

#: Most of it in linear, in two layers of a kind; 200 ms.
TRAINED = profile_of(
    {
        ("Net", "forward"): ms(4, 10),
        ("Net > relu(8x4)", "forward"): ms(6, 20),
        ("Net > Net.fc.0", "forward"): ms(1, 10),
        ("Net > Net.fc.0 > linear(8x4, 4x4, 4)", "forward"): ms(20, 10),
        ("Net > Net.fc.0 > linear(8x4, 4x4, 4)", "backward"): ms(53, 10),
        ("Net > Net.fc.1", "forward"): ms(1, 10),
        ("Net > Net.fc.1 > linear(8x4, 4x4, 4)", "forward"): ms(20, 10),
        ("Net > Net.fc.1 > linear(8x4, 4x4, 4)", "backward"): ms(54, 10),
        ("cross_entropy(8x4, 8)", "forward"): ms(5, 10),
        ("cross_entropy(8x4, 8)", "backward"): ms(7, 10),
        ("(optimizer) SGD", "optimizer"): ms(10, 10),
        ("(outside modules)", "outside"): ms(15, 0),
    },
    {"Net": "Net", "Net.fc.0": "Linear", "Net.fc.1": "Linear"},
)

#: A device that is always busy: by the host's clock, another module is hot.
BUSY = profile_of(
    {
        ("Net", "forward"): ms(2),
        ("Net > Net.large", "forward"): ms(1, 1, 30),
        ("Net > Net.large > linear(8x8, 8x8)", "forward"): ms(1, 1, 10),
        ("Net > Net.large", "backward"): ms(1, 1, 50),
        ("Net > Net.small", "forward"): ms(5, 1, 6),
        ("Net > Net.small > relu(8x8)", "forward"): ms(3, 1, 2),
        ("Net > Net.small", "backward"): ms(2, 1, 2),
        ("(outside modules)", "outside"): ms(85, 0),
    },
    {"Net": "Net", "Net.large": "Linear", "Net.small": "ReLU"},
    devices=("cuda",),
    device_asked=40,
    device_waits=4,
)


def counted(self_ms: float, flops: int, calls: int = 2) -> Totals:
    return replace(ms(self_ms, calls, self_ms / 2), flops=flops)


#: Net 10 ms, relu 10; fc 5, linear 15 + 30 + 10 (recomputed); outside 20.
COUNTED = profile_of(
    {
        ("Net", "forward"): ms(10, 2, 5),
        ("Net > relu(8x4)", "forward"): ms(10, 2, 5),
        ("Net > Net.fc", "forward"): ms(5, 2, 2.5),
        ("Net > Net.fc > linear(8x4)", "forward"): counted(15, 3_000_000),
        ("Net > Net.fc > linear(8x4)", "backward"): counted(30, 6_000_000),
        ("Net > Net.fc > linear(8x4)", "recompute"): counted(10, 3_000_000),
        ("(outside modules)", "outside"): ms(20, 0),
    },
    {"Net": "Net", "Net.fc": "Linear"},
    steps=2,
)


def given(
    calls: int, used: int, acquired: int = 0, retained: int = 0, peak: int = 0
) -> Totals:
    """A cell of so many calls, each of which uses and retains that much."""
    return ms(1, calls, 0, MemoryTotals(calls * used, acquired, calls * retained, peak))


#: Ten steps of Net, which calls fc and then block, which is recomputed.
ALLOCATING = profile_of(
    {
        ("Net", "forward"): given(10, 2 * MB, 20 * MB, MB, 9 * MB),
        ("Net > Net.fc", "forward"): given(10, 3 * MB, 0, 3 * MB, 3 * MB),
        ("Net > Net.block", "forward"): given(10, MB, 0, 0, 512 * KB),
        ("Net", "backward"): given(10, 0, 0, 0, 7 * MB),
        ("Net > Net.fc", "backward"): given(10, 6 * MB, 2 * MB, -3 * MB, 8 * MB),
        ("Net > Net.block", "backward"): given(10, 4 * MB, 0, 0, 6 * MB),
        ("Net > Net.block", "recompute"): given(10, MB, 0, 0, 512 * KB),
        ("(optimizer) SGD", "optimizer"): given(10, 600 * KB, 3 * MB, 0, 700 * KB),
        ("(outside modules)", "outside"): given(0, 0, 64 * MB),
        ("(profiler overhead)", "profiler"): ms(1),
    },
    {"Net": "Net", "Net.fc": "Linear", "Net.block": "Block"},
    memory=MemorySummary("cuda:0", 3 * MB, ("Net", "Net.fc"), "backward"),
)


def point(since_ms: int, owner: str, phase: Phase, **megabytes: int) -> MemoryPoint:
    """A moment at which so much of some kinds is in use."""
    by_kind = tuple(MB * megabytes.get(kind, 0) for kind in MEMORY_KINDS)
    return MemoryPoint(since_ms * MS, owner, phase, by_kind)


#: Two blocks with a linear each, of which the peak is known, and the course of a step.
_BLOCKS = [("Net", f"Net.blocks.{n}") for n in range(2)]
HOLDING = profile_of(
    {
        ("Net", "forward"): ms(4),
        **{(" > ".join(path), "forward"): ms(5) for path in _BLOCKS},
        **{(" > ".join((*path, "linear(8x4)")), "forward"): ms(5) for path in _BLOCKS},
        **{(" > ".join(path), "backward"): ms(0) for path in _BLOCKS},
        ("(optimizer) SGD", "optimizer"): ms(6),
    },
    {"Net": "Net", "Net.blocks.0": "Block", "Net.blocks.1": "Block"},
    memory=MemorySummary(
        "cpu",
        10 * MB,
        (*_BLOCKS[1], "linear(8x4)"),
        "backward",
        at_peak=(
            HeldMemory((*_BLOCKS[0], "linear(8x4)"), "forward", "activation", 3 * MB),
            HeldMemory((*_BLOCKS[1], "linear(8x4)"), "forward", "activation", 2 * MB),
            HeldMemory(_BLOCKS[0], "outside", "parameter", MB),
            HeldMemory(_BLOCKS[1], "outside", "parameter", MB),
            HeldMemory(("(optimizer) SGD",), "optimizer", "optimizer state", 2 * MB),
            HeldMemory((*_BLOCKS[1], "linear(8x4)"), "backward", "temporary", MB),
        ),
        step=MemoryStep(
            10 * MB,
            (
                point(0, "(outside modules)", "outside", parameter=2),
                point(10, "Net.blocks.0: linear(8x4)", "forward", parameter=2),
                point(20, "Net.blocks.1", "backward", parameter=2, activation=8),
                point(40, "(optimizer) SGD", "optimizer", parameter=2),
            ),
            (Checkpointing(("Net.blocks.0", "Net.blocks.1"), 6 * MB, 2),),
        ),
    ),
)


# Memory that ran out, and memory that grows

PAIRS = "sub(2048x1x128, 1x2048x128)"
TWICE = ((2048, 1, 128), (1, 2048, 128))
HELD = (
    HeldMemory(("Net", "Net.relu"), "forward", "activation", 40 * MB),
    HeldMemory(("(optimizer) Adam",), "optimizer", "optimizer state", 20 * MB),
)


def ran_out(requested_bytes: int, steps_after: int = 0) -> Profile:
    """A program with much time in Adam, in which the distances of all pairs are
    refused."""
    path = ("Net", "Net.distance", PAIRS)
    failure = MemoryFailure(requested_bytes, path, "forward", HELD, steps_after)
    cells: Cells = {
        ("Net", "forward"): ms(10),
        ("Net > Net.relu > relu(2048x64)", "forward"): ms(50),
        (f"Net > Net.distance > {PAIRS}", "forward"): ms(1),
        ("(optimizer) Adam", "optimizer"): ms(100),
    }
    modules: dict[str, ModuleInfo | str] = {
        "Net": "Net",
        "Net.relu": "ReLU",
        "Net.distance": "Distance",
        "relu(2048x64)": ModuleInfo("relu", "function", shapes=((2048, 64),)),
        PAIRS: ModuleInfo("sub", "function", shapes=TWICE),
    }
    facts = ProgramFacts((OptimizerFacts("Adam", 16, True, False, "cpu"),))
    memory = MemorySummary("cpu", 60 * MB, ("Net",), at_peak=HELD, failure=failure)
    program = Program("train.py", facts=facts)
    return profile_of(cells, modules, steps=2, memory=memory, program=program)


def contrastive() -> Profile:
    """A run in which the distances of all pairs are most of the memory."""
    path = ("Net", "Net.distance", PAIRS)
    held = (*HELD, HeldMemory(path, "forward", "temporary", 90 * MB))
    return replace(
        ran_out(1), memory=MemorySummary("cpu", 150 * MB, path, at_peak=held)
    )


def grows(
    path: str, kind: MemoryKind, a_step: int, since: int, phase: Phase = "forward"
) -> GrowingMemory:
    """As it is after 100 steps."""
    names = tuple(path.split(" > "))
    return GrowingMemory(names, phase, kind, (101 - since) * a_step, a_step, since)


LAYERS = [f"Net.blocks.{number}" for number in range(4)]
GROWING = (
    *(grows(f"Net > {layer}", "activation", 10 * KB, 14) for layer in LAYERS),
    grows("(outside modules)", "other", 5 * KB, 12, "outside"),
    grows("Net", "activation", 3 * KB, 14),
    grows("Net", "gradient", KB, 15, "backward"),
)
PEAK = HeldMemory(("Net",), "forward", "activation", 9000 * KB)


LEAKING = profile_of(
    {(f"Net > {layer}", "forward"): ms(1) for layer in LAYERS},
    {"Net": "Net", **dict.fromkeys(LAYERS, "Block")},
    memory=MemorySummary(
        "cpu", 9000 * KB, ("Net",), "forward", "", (PEAK,), growing=GROWING
    ),
)


# Kernels of a traced step

LONG = "void at::native::add<4, Functor<float> >(int, float*)"
COPY = "Memcpy HtoD (Pageable -> Device)"


def kernels(path: str, phase: Phase, **each: tuple[int, int]) -> KernelRow:
    """path: names with "/" between them. each: how many, and ms."""
    made = (Kernel(name, n, ms * MS) for name, (n, ms) in each.items())
    return KernelRow(tuple(path.split("/")), phase, tuple(made))


KERNELS = (
    kernels("Net", "forward", **{LONG: (1, 2)}),
    kernels("Net/Net.layers.0", "forward", gemm=(2, 5), relu=(1, 1)),
    kernels("Net/Net.layers.0", "backward", gemm=(4, 10)),
    kernels("Net/Net.layers.1", "forward", gemm=(2, 6), a=(1, 1), b=(1, 1), c=(1, 1)),
    kernels("Net/Net.layers.1", "recompute", gemm=(2, 6)),
    kernels("(optimizer) SGD", "optimizer", adam=(3, 4)),
    kernels("(other threads)", "outside", **{COPY: (1, 3)}),
)
TRACED = replace(
    with_fields(BUSY, steps=8),
    device_step=DeviceStep(
        4, 50 * MS, (DeviceUse("cuda:0", 30 * MS, (), 40 * MS, KERNELS),)
    ),
)
