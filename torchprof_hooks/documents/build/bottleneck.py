"""What takes most of the time, and can be changed: layers, or what is no module at all:
data loading, an optimizer, waiting, the host, compiling, garbage, the program itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from torchprof_hooks.documents.build.layers import (
    Hottest,
    Shares,
    own_ns,
    waits_for_the_host,
)
from torchprof_hooks.documents.document import Answer
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.documents.words import (
    PHASE_TITLES,
    percent,
    plural,
)
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import BACKWARD_NAME, BEFORE_NAME, Phase
from torchprof_hooks.profiles.rows import Row

#: "waiting" is for other processes; "host" is a device that waits until the host
#: launches something; "outside" the program itself, between calls.
BottleneckKind: TypeAlias = Literal[
    "module",
    "data",
    "optimizer",
    "waiting",
    "host",
    "compiling",
    "garbage",
    "outside",
]

#: The least share of the time for which something that is no module leads, if it takes
#: more than any kind of layers. What should not be there at all leads earlier than work
#: that has to be done.
_LEAST_WASTE: Final = 0.1
_LEAST_WORK: Final = 0.2
_WORK: Final = ("optimizer", "host", "outside")

_OF_KINDS: Final[Mapping[str, BottleneckKind]] = {
    "data": "data",
    "optimizer": "optimizer",
    "waiting": "waiting",
    "communication": "waiting",
    "compiling": "compiling",
    "garbage": "garbage",
    "outside": "outside",
}

_TITLES: Final[Mapping[BottleneckKind, str]] = {
    **{kind: PHASE_TITLES[phase] for phase, kind in _OF_KINDS.items()},
    "waiting": "communication and waiting",
    "host": "the host",
}
#: What the calls of a kind are called.
_CALLS: Final[Mapping[BottleneckKind, tuple[str, str]]] = {
    "data": ("batch", "batches"),
    "optimizer": ("step", ""),
    "waiting": ("call", ""),
    "compiling": ("compilation", ""),
    "garbage": ("collection", ""),
    "outside": ("step", ""),
}
#: The most parts of a bottleneck that are named, and their least share.
_NAMED: Final = 2
_LEAST_NAMED: Final = 0.01


class Bottleneck(NamedTuple):
    """What takes most.

    own_ns: how much of the time, by the clock that counts.
    phase: in which phase it is, or most of it.
    parts_ns: names of what it consists of -> their times, the longest first; of layers,
        see `Hottest` instead.
    calls: how many calls these are; outside modules, steps; 0 if there are none.
    waits: of the kind "host": how the device waits, in words.
    """

    kind: BottleneckKind
    own_ns: int
    phase: Phase
    parts_ns: Mapping[str, int]
    calls: int = 0
    waits: str = ""

    @property
    def title(self) -> str:
        """What it is called."""
        return _TITLES[self.kind]


def bottleneck_of(
    profile: ProfileData,
    rows: Sequence[Row],
    shares: Shares,
    hot: Hottest | None,
    *,
    is_loop: bool,
) -> Bottleneck | None:
    """What takes most, and can be changed; None if nothing takes time.

    rows: those of the profile, by module.
    hot: the hottest layers.
    is_loop: whether `profile` is without its start-up. With that, time of a program
        outside modules is mostly that of imports.
    """
    others: dict[BottleneckKind, list[Row]] = {}
    for row in rows:
        kind = _kind_of(row)
        if kind is not None and (kind != "outside" or is_loop or not profile.program):
            others.setdefault(kind, []).append(row)
    found = [
        _together(kind, alike, profile, shares.device) for kind, alike in others.items()
    ]
    found = [each for each in found if each.own_ns >= _least_ns(each, shares)]
    if hot is not None and hot.own_ns > 0:
        # The first one of those that take as long is the layers.
        found.insert(0, _host(profile, rows, shares, hot) or _layers(hot))
    return max(found, key=lambda each: each.own_ns, default=None)


def _layers(hot: Hottest) -> Bottleneck:
    times = hot.own_times_ns() or {"forward": hot.own_ns}
    phase = max(times, key=lambda each: times[each])
    return Bottleneck("module", hot.own_ns, phase, {hot.name: hot.own_ns})


def is_outside(row: Row) -> bool:
    """Whether it is the program itself, or the backward of losses and the like."""
    is_program = row.kind == "outside" and row.name != BEFORE_NAME
    return is_program or row.name == BACKWARD_NAME


def _kind_of(row: Row) -> BottleneckKind | None:
    if is_outside(row):
        return "outside"
    return None if row.name == BEFORE_NAME else _OF_KINDS.get(row.kind)


def _least_ns(found: Bottleneck, shares: Shares) -> float:
    least = _LEAST_WORK if found.kind in _WORK else _LEAST_WASTE
    return max(least * shares.whole_ns, 1)


def _together(
    kind: BottleneckKind, rows: Sequence[Row], profile: ProfileData, device: str
) -> Bottleneck:
    parts = Counter({_plain_name(row): own_ns(row, device) for row in rows})
    whole_ns, calls = parts.total(), sum(row.calls for row in rows)
    if kind == "outside":
        backward_ns = parts[BACKWARD_NAME.strip("()")]
        parts = _functions_outside(profile, device) or Counter(backward=backward_ns)
        calls = profile.steps
    phase = _longest_phase(rows, device)
    return Bottleneck(kind, whole_ns, phase, dict(parts.most_common()), calls)


def _longest_phase(rows: Iterable[Row], device: str = "") -> Phase:
    times: Counter[Phase] = Counter()
    for row in rows:
        for phase, totals in row.phases.items():
            times[phase] += own_ns(totals, device)
    return times.most_common(1)[0][0]


def _functions_outside(profile: ProfileData, device: str) -> Counter[str]:
    """The functions that nothing else calls, with their backward: losses and the
    like."""
    times, infos = Counter[str](), profile.modules
    for (path, _), totals in profile.cells.items():
        kinds = {infos[name].kind for name in path if name in infos}
        if kinds == {"function"}:
            times[infos[path[-1]].class_name] += own_ns(totals, device)
    return times


def _host(
    profile: ProfileData, rows: Sequence[Row], shares: Shares, hot: Hottest
) -> Bottleneck | None:
    """The host, if a device mostly waits for it: all time in modules, most of which is
    that of launching what they do."""
    if not waits_for_the_host(profile):
        return None
    share = percent(profile.device_waits, profile.device_asked)
    modules = [row for row in rows if row.kind == "module"]
    found = Bottleneck(
        "host",
        sum(row.self_ns for row in modules),
        _longest_phase(modules),
        {hot.name: hot.own_ns},
        waits=f"{', '.join(profile.devices)} waited for it at {share} of calls",
    )
    return found if found.own_ns >= _least_ns(found, shares) else None


def _plain_name(row: Row) -> str:
    """``Adam`` of ``(optimizer) Adam``, ``data loading`` of ``(data loading)``."""
    return row.name.partition(") ")[2] or row.name.strip("()")


def bottleneck_answer(found: Bottleneck, shares: Shares, next_step: str) -> Answer:
    """The answer, if no module takes most."""
    whole_ns = max(shares.whole_ns, 1)
    return Answer(
        "bottleneck",
        f"Bottleneck{shares.device and f' on {shares.device}'}",
        found.title,
        found.own_ns / whole_ns,
        None,
        ", ".join(_evidence(found, whole_ns)),
        {
            "kind": found.kind,
            "phase": found.phase,
            "self_ns": found.own_ns,
            "calls": found.calls,
            "whole_ns": whole_ns,
            "clock": shares.device or "host",
        },
        next_step,
    )


def _evidence(found: Bottleneck, whole_ns: int) -> Iterator[str]:
    if found.waits:
        yield found.waits
    least_ns = _LEAST_NAMED * whole_ns
    parts = [(name, ns) for name, ns in found.parts_ns.items() if ns >= least_ns]
    if [ns for _, ns in parts] == [found.own_ns]:  # its share is that of all
        parts = [(name, 0) for name, _ in parts if name != found.title]
    before = "the most in " * bool(found.waits)
    for name, ns in parts[:_NAMED]:
        yield f"{before}{name} {percent(ns, whole_ns)}" if ns else f"{before}{name}"
    if found.calls:
        calls = plural(found.calls, *_CALLS[found.kind])
        yield f"{calls}, {best_time(found.own_ns / found.calls)} each"
