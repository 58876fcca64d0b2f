"""Profiles made of cells, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.cells import CellKey, sum_of_own_ns
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.memory import NO_MEMORY, MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.parts import Part, PartName
from torchprof_hooks.profiles.step_times import NO_STEP_TIMES, StepTimes
from torchprof_hooks.profiles.totals import Totals

P = TypeVar("P", bound=ProfileData)

MS = 10**6

#: Cells by paths that are written ``"Net > Net.fc > linear(8x4)"``.
Written = Mapping[tuple[str, Phase], Totals]

NOT_MODULES: Mapping[str, ModuleInfo] = {
    "(optimizer) SGD": ModuleInfo(kind="optimizer"),
    "(data loading)": ModuleInfo(kind="data"),
    "(backward outside modules)": ModuleInfo(kind="backward"),
    "(profiler overhead)": ModuleInfo(kind="profiler"),
    "(outside modules)": ModuleInfo(kind="outside"),
    "(not measured)": ModuleInfo(kind="not measured"),
}


def ms(
    milliseconds: float,
    calls: int = 1,
    device_ms: float = 0,
    memory: MemoryTotals = NO_MEMORY,
) -> Totals:
    """The numbers of a cell."""
    own, device = round(milliseconds * MS), round(device_ms * MS)
    return Totals(calls=calls, self_ns=own, device_self_ns=device, memory=memory)


def made(
    cells: Written,
    modules: Mapping[str, ModuleInfo | str],
    steps: int = 0,
    step_times: StepTimes = NO_STEP_TIMES,
    part: PartName = "loop",
    **facts: Any,
) -> Profile:
    """A profile of one part. A module may be given by its class name; names that are
    not given are those of functions, which come last."""
    found: dict[CellKey, Totals] = {
        (tuple(path.split(" > ")), phase): totals
        for (path, phase), totals in cells.items()
    }
    infos: dict[str, ModuleInfo] = {}
    every = (name for path, _ in found for name in path)
    for order, name in enumerate(dict.fromkeys((*modules, *every))):
        function = ModuleInfo(name.partition("(")[0], "function")
        info = modules.get(name, NOT_MODULES.get(name, function))
        info = ModuleInfo(info) if isinstance(info, str) else info
        infos[name] = replace(info, order=order)
    whole = Part(part, sum_of_own_ns(found), steps, step_times, found)
    return Profile((whole,), infos, **facts)


def after(start_up: Profile, loop: P) -> P:
    """Both as one run; facts are those of the loop."""
    infos = {**start_up.modules, **loop.modules}
    return replace(loop, parts=(*start_up.parts, *loop.parts), modules=infos)


def with_unmeasured(profile: P, steps: int, took_ns: int, *longer: float) -> P:
    """The same run with as many steps that were not measured. After each of some blocks
    of these, measured steps took so much longer."""
    cells: dict[CellKey, Totals] = {
        (("(not measured)",), "outside"): Totals(self_ns=took_ns)
    }
    rest = Part("unmeasured", steps=steps).with_cells(cells)
    infos = {**profile.modules, "(not measured)": NOT_MODULES["(not measured)"]}
    measured = profile.measured._replace(longer=longer)
    parts = (*profile.parts, rest)
    return replace(profile, parts=parts, modules=infos, measured=measured)
