"""Scales what was measured in some steps of a run to all of its steps.

In every step, the time of each part of the run is known: of outermost modules, of
backward passes as a whole, of optimizers and so on. The inside of a part is known for
the measured steps only, and is scaled: own times such that they add up to the time of
the part in all steps, calls by the calls of the part. The code outside modules is not
called: functions in it scale with the steps, and its other time is its own. If the
inside of a part was never measured, its time has one row, "(not measured)". Own times
add up to those of all steps, to the nanosecond.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Final

from torchprof_hooks.profiles.cells import (
    OUTSIDE_CELL,
    PROFILER_CELL,
    CellKey,
    Cells,
    Infos,
    add_cell,
    add_outside,
    has_functions,
    outermost,
    place_without_functions,
    sum_of_own_ns,
    without_functions,
)
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.measured_steps import NO_STEPS, MeasuredSteps
from torchprof_hooks.profiles.modules import ModuleInfo, descriptions
from torchprof_hooks.profiles.names import (
    BACKWARD_NAME,
    BACKWARD_PHASES,
    ENGINE_NAME,
    NOT_MEASURED_NAME,
    OUTSIDE_NAME,
    Phase,
)
from torchprof_hooks.profiles.totals import Totals

#: Phases in which a part has an inside.
_INSIDE: Final = ("forward", *BACKWARD_PHASES)

#: A part of a run, by name and phase: an outermost module, an optimizer or the like,
#: backward as a whole, or the code outside modules.
PartOfRun = tuple[str, Phase]


def of_all_steps(
    off: ProfileData,
    on: ProfileData,
    *,
    steps: MeasuredSteps = NO_STEPS,
    aside_ns: int = 0,
    after_backward_ns: int = 0,
) -> ProfileData:
    """The profile of a run of which some steps were measured.

    Only the loop is scaled, not the start-up.

    off: the steps in which only the parts of the run were measured.
    on: the steps in which all was measured.
    steps: how many there were, and how many of them are those of `on`.
    aside_ns: the time that the profiler took between steps.
    after_backward_ns: how much of the time outside modules came after a backward pass.
    """
    whole = on.merge(off)
    first = bool(whole.start_up.wall_ns)  # a step that is not in the loop
    per_measured = _times(steps.steps - first, max(steps.measured - first, 0))
    cells = divided(off.loop.cells, on.loop.cells, whole.modules, per_measured)
    if aside_ns:
        add_cell(cells, PROFILER_CELL, Totals(self_ns=aside_ns))
    if outside := cells.pop(OUTSIDE_CELL, None):
        add_outside(cells, outside, after_backward_ns)
    parts = [p.with_cells(cells) if p.name == "loop" else p for p in whole.parts]
    names = dict.fromkeys(n for part in parts for path, _ in part.cells for n in path)
    infos = descriptions(names, whole.modules)
    return replace(whole, parts=tuple(parts), modules=infos)


def divided(
    off: Cells, on: Cells, infos: Infos, per_measured: float = 1.0
) -> dict[CellKey, Totals]:
    """The cells of all steps, scaled from those in `on` (see `of_all_steps`).

    per_measured: how many steps there are for each that was measured.
    """
    infos = {NOT_MEASURED_NAME: ModuleInfo(kind="not measured"), **infos}
    every = _by_part(on, infos), _by_part(off, infos)
    cells: dict[CellKey, Totals] = {}
    for part in dict.fromkeys(part for parts in every for part in parts):
        measured, others = (parts.get(part, {}) for parts in every)
        own_ns = sum_of_own_ns(measured) + sum_of_own_ns(others)
        if part == (OUTSIDE_NAME, "outside"):
            cells.update(_outside(measured, own_ns, per_measured))
            continue
        inside = measured
        if not measured or (own_ns and not sum_of_own_ns(measured)):
            inside = _not_measured_inside(others)
        calls = _calls(measured, part, infos) + _calls(others, part, infos)
        known = _calls(inside, part, infos)
        # Other parts that are not called, such as garbage collection, scale by time.
        pair = (calls, known) if known else (own_ns, sum_of_own_ns(inside))
        cells.update(_scaled_to(inside, own_ns, _times(*pair)))
    return cells


def _outside(cells: Cells, own_ns: int, steps: float) -> dict[CellKey, Totals]:
    """The code outside modules, which took `own_ns` in `steps` times as many steps. Its
    functions take no more than that."""
    found = dict(cells)
    rest = found.pop(OUTSIDE_CELL, Totals())
    in_functions_ns = min(round(steps * sum_of_own_ns(found)), own_ns)
    if found:
        found = _scaled_to(found, in_functions_ns, steps)
    if OUTSIDE_CELL in cells or in_functions_ns < own_ns:
        rest = _scaled(rest, 1, steps)
        found[OUTSIDE_CELL] = replace(rest, self_ns=own_ns - in_functions_ns)
    return found


def _by_part(cells: Cells, infos: Infos) -> dict[PartOfRun, dict[CellKey, Totals]]:
    found: defaultdict[PartOfRun, dict[CellKey, Totals]] = defaultdict(dict)
    are_functions = has_functions(infos)
    for key, totals in cells.items():
        path, phase = place_without_functions(*key, infos) if are_functions else key
        part: PartOfRun = (path[0], phase)
        if phase in BACKWARD_PHASES:
            part = (BACKWARD_NAME, "backward")
        found[part][key] = totals
    return found


def _calls(cells: Cells, part: PartOfRun, infos: Infos) -> int:
    """How often the part was called. Inside a profiled function, the chain of backward
    begins with that function."""
    name, phase = part
    cells, _ = without_functions(cells, infos)
    if phase == "forward":
        return outermost(cells, name, phase).calls
    is_backward = name == BACKWARD_NAME
    ends = (t for (path, _), t in cells.items() if path[-1] == name or not is_backward)
    return sum(totals.calls for totals in ends)


def _not_measured_inside(cells: Cells) -> dict[CellKey, Totals]:
    """The same cells, with the time of modules and of backward moved to cells
    `NOT_MEASURED_NAME`. Calls stay where they are."""
    found: dict[CellKey, Totals] = {}
    for (path, phase), totals in cells.items():
        if phase not in _INSIDE:
            add_cell(found, (path, phase), totals)
            continue
        around = path[:-1] if path[-1] in (BACKWARD_NAME, ENGINE_NAME) else path
        add_cell(found, (path, phase), totals.without_time())
        add_cell(found, ((*around, NOT_MEASURED_NAME), phase), totals.without_calls())
    return found


def _times(whole: int, some: int) -> float:
    """The factor from `some` to `whole`; 1.0 if `some` is 0."""
    return whole / some if some else 1.0


def _scaled_to(cells: Cells, own_ns: int, calls: float) -> dict[CellKey, Totals]:
    """The cells of a part, scaled such that their own times add up to `own_ns`, and to
    `calls` times as many calls. What rounding loses goes to the largest cell."""
    found_ns = sum_of_own_ns(cells)
    if found_ns == own_ns and calls == 1:
        return dict(cells)
    time = own_ns / found_ns if found_ns else calls
    scaled = {key: _scaled(totals, time, calls) for key, totals in cells.items()}
    largest = max(scaled, key=lambda key: scaled[key].self_ns)
    lost_ns = own_ns - sum_of_own_ns(scaled)
    known = scaled[largest]
    scaled[largest] = replace(known, self_ns=known.self_ns + lost_ns)
    return scaled


def _scaled(totals: Totals, time: float, calls: float) -> Totals:
    """The totals of `calls` times as many calls, which took `time` times as long
    together. The spread of the calls, in relation to their mean, stays the same."""
    squares = time**2 / calls if calls else 0.0
    return replace(
        totals,
        calls=round(totals.calls * calls),
        self_ns=round(totals.self_ns * time),
        duration_ns=round(totals.duration_ns * time),
        squares_ns2=round(totals.squares_ns2 * squares),
        device_self_ns=round(totals.device_self_ns * time),
        memory=totals.memory.scaled(calls),
        flops=round(totals.flops * calls),
    )
