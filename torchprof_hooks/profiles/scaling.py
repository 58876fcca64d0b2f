"""All steps of a run from those that were measured.

In each step it is known what outermost modules, backward passes as a whole, optimizers
and so on took: these are the parts of a run. What is inside of a part is known of some
steps alone, and is scaled: own times by the time of the part in all steps, calls by the
calls of the part. A part that was never measured inside has one row for that,
"(not measured)". Own times add up to those of all steps, to the nanosecond.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import reduce
from typing import Final

from torchprof_hooks.profiles.cells import (
    OUTSIDE_CELL,
    PROFILER_CELL,
    CellKey,
    Cells,
    Infos,
    add_cell,
    add_outside,
    outermost,
    place_without_functions,
    sum_of_own_ns,
    without_functions,
)
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import (
    BACKWARD_NAME,
    BACKWARD_PHASES,
    ENGINE_NAME,
    UNSAMPLED_NAME,
    Phase,
    kind_of_other,
)
from torchprof_hooks.profiles.totals import NOTHING, Totals

#: Phases of what is called in a part, or of its backward.
_INSIDE: Final = ("forward", *BACKWARD_PHASES)

#: A part of a run: an outermost module, or what is no module, and its phase; backward
#: as a whole; or the code outside modules.
PartOfRun = tuple[str, Phase]


def of_all_steps(
    off: ProfileData,
    modules: ProfileData,
    functions: ProfileData,
    *,
    aside_ns: int = 0,
    after_backward_ns: int = 0,
    for_each: float = 0.0,
) -> ProfileData:
    """The profile of a run of which some steps were measured.

    Start-ups stay as they were measured.

    off: steps in which nothing but the parts was measured. modules: those in which
        modules were measured. functions: those in which functions were measured, too.
    aside_ns: what the profiler took between steps.
    after_backward_ns: how much of the time outside modules came after a backward pass.
    for_each: how many steps there were for each in which functions were measured; 0.0
        if that is not known. So many times as often were functions called that no
        module calls.
    """
    whole = reduce(ProfileData.merge, (modules, functions, off))
    of_off, of_modules, of_functions = (p.loop.cells for p in (off, modules, functions))
    cells = divided(of_off, of_modules, of_functions, whole.modules, for_each)
    if aside_ns:
        add_cell(cells, PROFILER_CELL, Totals(self_ns=aside_ns))
    if outside := cells.pop(OUTSIDE_CELL, None):
        add_outside(cells, outside.self_ns, after_backward_ns)
    parts = [p.with_cells(cells) if p.name == "loop" else p for p in whole.parts]
    known = whole.modules
    names = dict.fromkeys(n for part in parts for path, _ in part.cells for n in path)
    infos = {n: known.get(n) or ModuleInfo(kind=kind_of_other(n)) for n in names}
    return replace(whole, parts=tuple(parts), modules=infos)


def divided(
    off: Cells, modules: Cells, functions: Cells, infos: Infos, for_each: float = 0.0
) -> dict[CellKey, Totals]:
    """The cells of all these steps (see `of_all_steps`)."""
    folded, _ = without_functions(functions, infos)
    every = [_by_part(each) for each in (modules, folded, off)]
    cells: dict[CellKey, Totals] = {}
    for part in dict.fromkeys(part for parts in every for part in parts):
        of_part = [parts.get(part, {}) for parts in every]
        own_ns = sum(map(sum_of_own_ns, of_part))
        measured = [c for c in of_part[:2] if c and (sum_of_own_ns(c) or not own_ns)]
        inside = measured[0] if measured else _not_measured_inside(of_part[2])
        calls, known = sum(_calls(c, part) for c in of_part), _calls(inside, part)
        # The code outside modules is not called: its parts come as often as it lasts.
        pair = (calls, known) if known else (own_ns, sum_of_own_ns(inside))
        cells.update(_scaled_to(inside, own_ns, _times(*pair)))
    return _with_functions(cells, functions, infos, for_each)


def _by_part(cells: Cells) -> dict[PartOfRun, dict[CellKey, Totals]]:
    found: defaultdict[PartOfRun, dict[CellKey, Totals]] = defaultdict(dict)
    for (path, phase), totals in cells.items():
        part: PartOfRun = (path[0], phase)
        if phase in BACKWARD_PHASES:
            part = (BACKWARD_NAME, "backward")
        found[part][path, phase] = totals
    return found


def _calls(cells: Cells, part: PartOfRun) -> int:
    """How often the part was called; in profiled functions, it has longer paths."""
    name, phase = part
    if phase == "forward":
        return outermost(cells, name, phase).calls
    is_backward = name == BACKWARD_NAME
    ends = (t for (path, _), t in cells.items() if path[-1] == name or not is_backward)
    return sum(totals.calls for totals in ends)


def _not_measured_inside(cells: Cells) -> dict[CellKey, Totals]:
    """The same cells with the time inside of modules and of backward on a row of its
    own. Calls stay where they are."""
    found: dict[CellKey, Totals] = {}
    for (path, phase), totals in cells.items():
        if phase not in _INSIDE:
            add_cell(found, (path, phase), totals)
            continue
        around = path[:-1] if path[-1] in (BACKWARD_NAME, ENGINE_NAME) else path
        add_cell(found, (path, phase), totals.without_time())
        add_cell(found, ((*around, UNSAMPLED_NAME), phase), totals.without_calls())
    return found


def _times(whole: int, some: int) -> float:
    """How many times `some` the whole is."""
    return whole / some if some else 1.0


def _scaled_to(cells: Cells, own_ns: int, calls: float) -> dict[CellKey, Totals]:
    """The cells of a part with so much own time in all, and `calls` times as many
    calls. What rounding loses goes to the largest cell."""
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
    """Totals of `calls` times as many calls, which took `time` times as long together.
    How far calls differ from their mean stays the same, in relation to the mean."""
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


def _with_functions(
    cells: Cells, functions: Cells, infos: Infos, for_each: float
) -> dict[CellKey, Totals]:
    """These cells of modules, in which a part of the own time is that of functions: the
    same share as where functions were measured. So it does not matter how many of the
    calls there were short ones: evaluations, say."""
    inside: defaultdict[CellKey, dict[CellKey, Totals]] = defaultdict(dict)
    for key, totals in functions.items():
        inside[place_without_functions(*key, infos)][key] = totals
    found: dict[CellKey, Totals] = {}
    for key, whole in cells.items():
        found.update(_divided(key, whole, inside.get(key, {}), for_each))
    return found


def _divided(
    key: CellKey, whole: Totals, inside: Cells, for_each: float
) -> dict[CellKey, Totals]:
    """The totals of a module, and of the functions in it; `inside`: both, as they were
    where functions were measured."""
    known = inside.get(key, NOTHING)
    called = {each: totals for each, totals in inside.items() if each != key}
    if not called:
        return {key: whole}
    own_calls, all_ns = _of_itself(inside, key).calls, sum_of_own_ns(inside)
    if own_calls:
        calls = _times(whole.calls, own_calls)
    else:
        calls = for_each or _times(whole.self_ns, all_ns)
    share = sum_of_own_ns(called) / all_ns if all_ns else 0.0
    cells = _scaled_to(called, round(share * whole.self_ns), calls)
    if key == OUTSIDE_CELL:  # nothing but time is known of it
        return {**cells, key: Totals(self_ns=whole.self_ns - sum_of_own_ns(cells))}
    device_ns = sum(totals.device_self_ns for totals in inside.values())
    device = whole.device_self_ns / device_ns if device_ns else 0.0
    for each, totals in cells.items():
        own_device_ns = round(called[each].device_self_ns * device)
        cells[each] = replace(totals, device_self_ns=own_device_ns)
    of_functions = reduce(Totals.__add__, cells.values())
    in_functions = _of_itself(cells, key)
    rest = replace(
        whole,
        calls=whole.calls - in_functions.calls,
        self_ns=whole.self_ns - of_functions.self_ns,
        duration_ns=whole.duration_ns - in_functions.duration_ns,
        squares_ns2=whole.squares_ns2 - in_functions.squares_ns2,
        device_self_ns=whole.device_self_ns - of_functions.device_self_ns,
        memory=whole.memory.without(of_functions.memory),
        flops=round(known.flops * calls),
    )
    if key in inside or rest.calls or rest.self_ns:
        cells[key] = rest
    return cells


def _of_itself(cells: Cells, key: CellKey) -> Totals:
    """The calls of a module itself, also those that functions in it, or around it, have
    made."""
    own = (totals for (path, _), totals in cells.items() if path[-1] == key[0][-1])
    return reduce(Totals.__add__, own, NOTHING)
