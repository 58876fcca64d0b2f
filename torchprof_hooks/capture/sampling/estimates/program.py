"""The profile of a whole program, of which some steps were measured closely."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from torchprof_hooks.capture.sampling.estimates.pattern import scaled
from torchprof_hooks.capture.sampling.estimates.strata import Strata
from torchprof_hooks.profiles.cells import (
    CellKey,
    Cells,
    Infos,
    place_without_functions,
    without_functions,
)
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.modules import ModuleInfo, all_modules
from torchprof_hooks.profiles.parts import PartName
from torchprof_hooks.profiles.program import MeasuredSteps
from torchprof_hooks.profiles.totals import NOTHING, Totals


def program_profile(strata: Strata) -> ProfileData:
    """All steps of a program, without what measuring took: the first one, with what
    came before it, as the start-up; and an estimate of all others as the loop.

    Times of modules are those of steps in which modules were measured. Inside of a
    module, they are divided among functions as in the steps in which functions were
    measured.
    """
    start_up = strata.warm_up.profile.corrected()
    modules = strata.estimate(of_functions=False, warm_up=False)
    functions = strata.estimate(of_functions=True, warm_up=False)
    loop = functions_inside(modules, functions)
    measured = strata.whole
    stretches: dict[PartName, ProfileData] = {"loop": loop.merge(start_up)}
    if 0 < strata.warm_up.steps < strata.steps:
        stretches = {"start-up": start_up, "loop": loop}
    parts = [replace(p.parts[0], name=name) for name, p in stretches.items()]
    infos = {**measured.modules, **all_modules(start_up.modules, loop.modules)}
    infos = _in_order(infos, start_up.modules)
    return replace(measured, parts=tuple(parts), modules=infos)


def _in_order(infos: Infos, first: Infos) -> dict[str, ModuleInfo]:
    """The same names in the order of first calls: those of the first step, and then all
    others. Orders of different steps tell nothing of each other."""
    after = 1 + max((info.order for info in first.values()), default=-1)
    orders = {n: after + info.order for n, info in infos.items()}
    orders.update((n, info.order) for n, info in first.items())
    return {n: replace(info, order=orders[n]) for n, info in infos.items()}


def functions_inside(modules: ProfileData, functions: ProfileData) -> ProfileData:
    """`modules`, in which the own time of each module and phase is divided among the
    functions that it calls as in `functions`; so own times add up to the same, to the
    nanosecond, and memory to the byte."""
    if not functions.has_functions:
        return modules
    # The order of calls is known where functions were among the names.
    infos = {**modules.modules, **functions.modules}
    inside: defaultdict[CellKey, dict[CellKey, Totals]] = defaultdict(dict)
    for key, totals in functions.cells.items():
        inside[place_without_functions(*key, functions.modules)][key] = totals
    cells: dict[CellKey, Totals] = {}
    folded, _ = without_functions(modules.cells, modules.modules)
    for key, totals in folded.items():
        cells.update(_divided(key, totals, inside.get(key, {})))
    return modules.with_cells(cells, infos)


def _divided(key: CellKey, whole: Totals, inside: Cells) -> Mapping[CellKey, Totals]:
    """The totals of a module, divided as its own cell and those of functions in it are
    in `inside`. What rounding loses is the module's; and all, if measuring took all of
    the time there."""
    if inside.keys() <= {key}:
        return {key: whole}
    found_ns = sum(totals.self_ns for totals in inside.values())
    time = whole.self_ns / found_ns if found_ns > 0 else 0.0
    device_ns = sum(totals.device_self_ns for totals in inside.values())
    device_time = whole.device_self_ns / device_ns if device_ns else 0.0
    cells = {
        each: replace(
            scaled(totals, time, 1.0),
            device_self_ns=round(totals.device_self_ns * device_time),
        )
        for each, totals in inside.items()
        if each != key
    }
    functions = sum(cells.values(), NOTHING)
    cells[key] = replace(
        whole,
        self_ns=whole.self_ns - functions.self_ns,
        device_self_ns=whole.device_self_ns - functions.device_self_ns,
        memory=whole.memory.without(functions.memory),
        flops=inside.get(key, NOTHING).flops,
    )
    return cells


def measured_steps(strata: Strata) -> MeasuredSteps:
    """In how many steps of a program what was measured."""
    traced = strata.disturbed
    has_functions = strata.whole.has_functions
    return MeasuredSteps(
        steps=strata.steps,
        phases=strata.steps_in_phases,
        modules=strata.looked_at(of_functions=False),
        functions=strata.looked_at(of_functions=True) if has_functions else 0,
        traced=traced.steps,
        traced_ns=traced.profile.wall_ns,
    )
