"""A profile as named numbers, for TensorBoard and similar tools."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final, get_args

from torchprof_hooks.documents import utilisation
from torchprof_hooks.profiles.cells import enclosing_module, place_without_functions
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.kinds import without_numbers
from torchprof_hooks.profiles.names import MODULE_PHASES, Phase
from torchprof_hooks.profiles.options import check_whole

_MS: Final = 1e6
_MB: Final = 2**20
#: Characters that experiment trackers refuse in a name.
_FORBIDDEN: Final = re.compile(r"[^\w./-]", re.ASCII)

#: Own times by (kind of layers, phase); of a phase as a whole, the kind is "".
_Times = Counter[tuple[str, Phase]]


def scalars(
    profile: ProfileData, top: int, since: ProfileData | None
) -> dict[str, float]:
    """See `Profile.scalars`. There may be thousands of cells, and little time: so this
    adds up cells, without making rows."""
    top = check_whole("top", top, 0)
    profile = profile.only_measured
    before = (since or ProfileData()).only_measured
    steps = max(profile.steps - before.steps, 1)
    times = _own_times(profile)
    times.subtract(_own_times(before))
    found = dict(_of_steps(profile, before))
    for phase in get_args(Phase):
        found[f"time/{phase}_ms"] = times["", phase] / _MS / steps
    wall_ns = profile.wall_ns - before.wall_ns
    cost_ns = profile.overhead_ns - before.overhead_ns
    found["overhead"] = max(cost_ns, 0) / wall_ns if wall_ns > 0 else 0.0
    found.update(_rates(profile))
    if profile.memory and profile.memory.source:
        found["memory/peak_mb"] = profile.memory.peak_bytes / _MB
        for held, size in profile.memory.bytes_by_kind().items():
            found[f"memory/{held.replace(' ', '_')}_mb"] = size / _MB
    for kind in _hottest(times, top):
        for phase in MODULE_PHASES:
            if (kind, phase) in times:
                name = f"module/{_FORBIDDEN.sub('_', kind)}/{phase}_ms"
                found[name] = found.get(name, 0.0) + times[kind, phase] / _MS / steps
    return found


def _rates(profile: ProfileData) -> Iterator[tuple[str, float]]:
    if shares := utilisation.of_profile(profile):
        yield "mfu", shares.mfu
        yield "hfu", shares.hfu
    if speed := utilisation.items_per_second(profile):
        yield "items_per_second", speed


def _of_steps(profile: ProfileData, before: ProfileData) -> Iterator[tuple[str, float]]:
    """The number of steps, and durations of steps and evaluation calls, if any."""
    yield "steps", float(profile.steps - before.steps)
    times = profile.step_times.without(before.step_times)
    if times.later_steps:
        yield "time/step_ms", times.mean_ns / _MS
        yield "time/step_median_ms", times.quantile_ns(0.5) / _MS
        yield "time/step_p90_ms", times.quantile_ns(0.9) / _MS
    if times.evaluations:
        yield "time/evaluation_ms", times.evaluation_mean_ns / _MS


def _own_times(profile: ProfileData) -> _Times:
    """The own times of phases, and of each kind of layers."""
    infos = profile.modules
    kinds: dict[str, str] = {}
    times: _Times = Counter()
    for (path, phase), totals in profile.cells.items():
        around, own_phase = place_without_functions(path, phase, infos)
        times["", own_phase] += totals.self_ns
        module = enclosing_module(path, infos)
        if module and module == around[-1]:
            if module not in kinds:
                kinds[module] = _kind(module, infos[module].class_name)
            times[kinds[module], own_phase] += totals.self_ns
    return times


def _kind(module: str, class_name: str) -> str:
    """The name of a kind of layers: ``Net.blocks.*-Block``. If layers have numbers, it
    always has the class, as only the number may tell a Linear from a ReLU; and a layer
    of another class that is called later must not change names."""
    name = without_numbers(module)
    return name if name == module else f"{name}-{class_name}"


def _hottest(times: _Times, top: int) -> list[str]:
    sums: Counter[str] = Counter()
    for (kind, _), own_ns in times.items():
        if kind:
            sums[kind] += own_ns
    ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return [kind for kind, own_ns in ranked[:top] if own_ns > 0]
