"""Profiles built of cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from tests import fake_clock
from torchprof_hooks import Profile
from torchprof_hooks.profiles.cells import CellKey, sum_of_own_ns
from torchprof_hooks.profiles.data import P
from torchprof_hooks.profiles.memory import NO_MEMORY, MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.parts import Part, PartName, divided
from torchprof_hooks.profiles.step_times import (
    NO_STEP_TIMES,
    Bucket,
    StepTimes,
    bucket_of,
    sorted_buckets,
)
from torchprof_hooks.profiles.totals import Totals

MS: Final = fake_clock.MS

#: Cells by paths that are written ``"Net > Net.fc > linear(8x4)"``, or are tuples.
Written = Mapping[Any, Totals]
Modules = Mapping[str, ModuleInfo | str]
#: For annotations of cells that are put together.
Cells = dict[tuple[str, Phase], Totals]

#: The rows that are no modules, and no functions.
NOT_MODULES: Final[Mapping[str, ModuleInfo]] = {
    "(optimizer) SGD": ModuleInfo(kind="optimizer"),
    "(optimizer) Adam": ModuleInfo(kind="optimizer"),
    "(data loading)": ModuleInfo(kind="data"),
    "(waiting for gradients)": ModuleInfo(kind="waiting"),
    "(communication) broadcast": ModuleInfo(kind="communication"),
    "(torch.compile)": ModuleInfo(kind="compiling"),
    "(garbage collection)": ModuleInfo(kind="garbage"),
    "(backward outside modules)": ModuleInfo(kind="backward"),
    "(profiler overhead)": ModuleInfo(kind="profiler"),
    "(outside modules)": ModuleInfo(kind="outside"),
    "(before torch was imported)": ModuleInfo(kind="outside"),
    "(not measured)": ModuleInfo(kind="not measured"),
}


def own(
    self_ns: int,
    calls: int = 1,
    device_ns: int = 0,
    memory: MemoryTotals = NO_MEMORY,
) -> Totals:
    """The numbers of a cell of which only own times count."""
    return Totals(calls=calls, self_ns=self_ns, device_self_ns=device_ns, memory=memory)


def ms(
    milliseconds: float,
    calls: int = 1,
    device_ms: float = 0,
    memory: MemoryTotals = NO_MEMORY,
) -> Totals:
    """The same in milliseconds."""
    return own(round(milliseconds * MS), calls, round(device_ms * MS), memory)


def timed(*durations_ns: int) -> Totals:
    """A cell of calls of these durations, without inner calls."""
    return Totals(
        calls=len(durations_ns),
        self_ns=sum(durations_ns),
        min_ns=min(durations_ns),
        max_ns=max(durations_ns),
        duration_ns=sum(durations_ns),
        squares_ns2=sum(duration**2 for duration in durations_ns),
    )


def profile_of(
    cells: Written | None = None,
    modules: Modules | None = None,
    steps: int = 0,
    step_times: StepTimes = NO_STEP_TIMES,
    *,
    wall_ns: int | None = None,
    first: Written | None = None,
    part: PartName | None = None,
    **facts: Any,
) -> Profile:
    """A profile of these cells.

    modules: where paths are written, a module may be given by its class name, and names
        that are not given are those of functions, which come last, or `NOT_MODULES`.
    wall_ns: by default, the sum of the cells.
    first: the cells of its first step, which are the start-up.
    part: the only part, if the profile is not to be divided by its first step.
    """
    found = {
        (tuple(path.split(" > ")) if isinstance(path, str) else path, phase): totals
        for (path, phase), totals in (cells or {}).items()
    }
    infos: Mapping[str, Any] = modules or {}
    if any(isinstance(path, str) for path, _ in cells or {}):
        infos = _placed(infos, found)
    if wall_ns is None:
        wall_ns = sum_of_own_ns(found)
    whole = Part(part or "loop", wall_ns, steps, step_times, found)
    if part is not None:
        return Profile((whole,), infos, **facts)
    of_first = StepTimes(step_times.first_steps, step_times.first_ns)
    return Profile(divided(whole, first or {}, of_first), infos, **facts)


def _placed(modules: Modules, cells: Iterable[CellKey]) -> Mapping[str, ModuleInfo]:
    """All names with their infos, in the order in which they are given."""
    infos: dict[str, ModuleInfo] = {}
    names = dict.fromkeys((*modules, *(name for path, _ in cells for name in path)))
    for order, name in enumerate(names):
        function = ModuleInfo(name.partition("(")[0], "function")
        info = modules.get(name, NOT_MODULES.get(name, function))
        info = ModuleInfo(info) if isinstance(info, str) else info
        infos[name] = replace(info, order=order)
    return infos


def after(start_up: Profile, loop: P) -> P:
    """Both as one run; facts are those of the loop."""
    infos = {**start_up.modules, **loop.modules}
    return replace(loop, parts=(*start_up.parts, *loop.parts), modules=infos)


def with_unmeasured(profile: P, steps: int, took_ns: int, *longer: float) -> P:
    """The same run with as many steps that were not measured. After each of some blocks
    of these, measured steps took so much longer."""
    cells = {(("(not measured)",), "outside"): Totals(self_ns=took_ns)}
    times = StepTimes(later=buckets([took_ns // steps] * steps))
    rest = Part("unmeasured", steps=steps, step_times=times).with_cells(cells)  # type: ignore[arg-type]
    infos = {**profile.modules, "(not measured)": NOT_MODULES["(not measured)"]}
    measured = profile.measured
    if longer:
        measured = measured._replace(longer=longer)
    parts = (*profile.parts, rest)
    return replace(profile, parts=parts, modules=infos, measured=measured)


def with_fields(profile: P, **fields: Any) -> P:
    """The same with other fields in each of its parts."""
    parts = tuple(replace(part, **fields) for part in profile.parts)
    return replace(profile, parts=parts)


def buckets(durations_ns: Iterable[int]) -> tuple[Bucket, ...]:
    """A step of each of these durations."""
    return sorted_buckets(Bucket(bucket_of(ns), 1, ns) for ns in durations_ns)


#: Net calls a (Linear) and b (Block), which calls b.a (Linear); b is recomputed.
STEP = profile_of(
    {
        ("Net", "forward"): own(10, calls=2),
        ("Net > Net.a", "forward"): own(30, calls=2),
        ("Net > Net.b", "forward"): own(5, calls=2),
        ("Net > Net.b > Net.b.a", "forward"): own(15, calls=4),
        ("Net", "backward"): own(1, calls=2),
        ("Net > Net.a", "backward"): own(40, calls=2),
        ("Net > Net.b > Net.b.a", "backward"): own(20, calls=4),
        ("Net > Net.b", "recompute"): own(6, calls=2),
        ("Net > Net.b > Net.b.a", "recompute"): own(14, calls=4),
        ("(optimizer) SGD", "optimizer"): own(8, calls=2),
        ("(backward outside modules)", "backward"): own(4, calls=2),
        ("(profiler overhead)", "profiler"): own(3, calls=2),
        ("(outside modules)", "outside"): own(12, calls=0),
    },
    {
        "Net": "Net",
        "Net.a": "Linear",
        "Net.b": "Block",
        "Net.b.a": "Linear",
    },
)


#: Two steps of a Net with functions. It calls fc (Linear), relu, and, in a reentrant
#: checkpoint, block (Linear); a tanh between modules is recomputed as well. Loss and
#: dropout, which a checkpoint calls again, are called from outside.
FUNCTIONS = profile_of(
    {
        ("Net", "forward"): own(10, calls=2),
        ("Net > Net.fc", "forward"): own(2, calls=2),
        ("Net > Net.fc > linear(8x4, 4x4)", "forward"): own(20, calls=2),
        ("Net > relu(8x4)", "forward"): own(3, calls=4),
        ("Net > CheckpointFunction(8x4)", "forward"): own(4, calls=2),
        ("Net > CheckpointFunction(8x4) > Net.block", "forward"): own(1, calls=2),
        (
            "Net > CheckpointFunction(8x4) > Net.block > linear(8x4, 4x4)",
            "forward",
        ): own(11, calls=2),
        ("Net > tanh(8x4)", "forward"): own(5, calls=2),
        ("Net > tanh(8x4) > mul(8x4, 8x4)", "forward"): own(6, calls=6),
        ("dropout(8x4)", "forward"): own(9, calls=2),
        ("cross_entropy(8x4, 8)", "forward"): own(7, calls=2),
        ("cross_entropy(8x4, 8)", "backward"): own(8, calls=2),
        ("dropout(8x4)", "recompute"): own(14, calls=2),
        ("Net", "backward"): own(1, calls=2),
        ("Net > tanh(8x4)", "recompute"): own(15, calls=2),
        ("Net > CheckpointFunction(8x4)", "backward"): own(16, calls=2),
        ("Net > CheckpointFunction(8x4) > Net.block", "recompute"): own(2, calls=2),
        (
            "Net > CheckpointFunction(8x4) > Net.block > linear(8x4, 4x4)",
            "recompute",
        ): own(12, calls=2),
        (
            "Net > CheckpointFunction(8x4) > Net.block > linear(8x4, 4x4)",
            "backward",
        ): own(22, calls=2),
        ("Net > Net.fc > linear(8x4, 4x4)", "backward"): own(35, calls=2),
        ("(optimizer) SGD", "optimizer"): own(13, calls=2),
        ("(optimizer) SGD > add_(4x4)", "optimizer"): own(18, calls=4),
        ("(backward outside modules)", "backward"): own(3, calls=2),
        ("(profiler overhead)", "profiler"): own(19, calls=2),
        ("(outside modules)", "outside"): own(17, calls=0),
    },
    {"Net": "Net", "Net.fc": "Linear", "Net.block": "Linear"},
)
