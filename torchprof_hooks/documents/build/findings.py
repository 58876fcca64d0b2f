"""What a run is about: layers that depart from their kind, layers whose backward is
slow, and the bottleneck, which is layers or what is no module at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from torchprof_hooks.documents.build.layers import (
    Hottest,
    Shares,
    are_enough,
    noise_ns,
    own_ns,
    waits_for_the_host,
)
from torchprof_hooks.documents.document import Answer
from torchprof_hooks.documents.render.units import best_time
from torchprof_hooks.documents.words import percent, plural
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.kinds import LayerKind
from torchprof_hooks.profiles.names import (
    BACKWARD_NAME,
    IN_NO_STEP,
    MODULE_PHASES,
    Phase,
)
from torchprof_hooks.profiles.phases import PHASE_OF_KIND, PHASE_TITLES, PHASES
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.totals import summed_phases

#: A layer departs if its own time is more than so many medians of the others of its
#: kind, which are so many at least (of two layers, either may be the one that departs),
#: and if it takes such a share of all time longer than these.
DEPARTS: Final = 1.5
LEAST_SIBLINGS: Final = 2
LEAST_DEPARTURE: Final = 0.05
#: Backward usually takes twice as long as forward. So many times are unusual, if it
#: takes such a share of all time.
LONG_BACKWARD: Final = 6
LEAST_BACKWARD: Final = 0.05
#: Ratios above this print as ">99x".
_MANY: Final = 99


def times_text(times: float) -> str:
    """``3.1x``, ``31x``, ``>99x``."""
    if times > _MANY:
        return f">{_MANY}x"
    return f"{times:.1f}x" if times < 10 else f"{times:.0f}x"


# Layers


class Departure(NamedTuple):
    """How a layer departs from its siblings, the others of its kind.

    siblings: how many these are.
    times: its own time, in medians of theirs.
    more_ns: how much longer than that median it takes.
    flop_times: its operations, in medians of theirs; 0.0 if that is not known.
    """

    siblings: int
    times: float
    more_ns: float
    flop_times: float = 0.0

    @property
    def is_explained(self) -> bool:
        """Whether it takes longer because it has more to do."""
        return self.times < DEPARTS * self.flop_times

    def __str__(self) -> str:
        """``3.1x its siblings``."""
        return f"{times_text(self.times)} its siblings"


def departing(
    kinds: Iterable[Sequence[Row]], whole_ns: float, device: str
) -> Mapping[str, Departure]:
    """The layers that depart from their kind, by name.

    kinds: the layers of each kind.
    whole_ns: all time.
    device: the device whose clock counts; "" for the host's.
    """
    found: dict[str, Departure] = {}
    least_ns = LEAST_DEPARTURE * whole_ns
    for alike in kinds:
        if len(alike) <= LEAST_SIBLINGS:
            continue
        own_times = [own_ns(row, device) for row in alike]
        times = sorted(own_times)
        for row, own in zip(alike, own_times, strict=True):
            if own - times[0] < least_ns:  # no median is less than the shortest
                continue
            usual_ns = _median_without(times, own)
            times_usual = own / max(usual_ns, 1)
            every = [row.phases[phase] for phase in MODULE_PHASES]
            is_more = own - usual_ns >= max(least_ns, noise_ns(every, device))
            if is_more and times_usual > DEPARTS and are_enough(every):
                flops = sorted(each.flops for each in alike)
                usual_flops = _median_without(flops, row.flops)
                found[row.name] = Departure(
                    len(alike) - 1,
                    times_usual,
                    own - usual_ns,
                    row.flops / usual_flops if usual_flops > 0 else 0.0,
                )
    return found


def _median_without(values: Sequence[int], value: int) -> float:
    """The median of all these sorted values but one of `value`: of each of many layers,
    in no more time than of one."""
    middle, is_odd = divmod(len(values) - 1, 2)

    def nth(place: int) -> int:  # without the value, those behind it move up
        return values[place + (values[place] >= value)]

    return nth(middle) if is_odd else (nth(middle - 1) + nth(middle)) / 2


class Unusual(NamedTuple):
    """Something unusual about layers of a kind.

    rows: the layers.
    own_ns: what it is about takes so long.
    text: a few words, for the line of the layers in a table.
    departure: if it is that a layer departs; None if it is a slow backward.
    times: how many times as long it takes as is usual, or as forward.
    """

    kind: LayerKind
    rows: Sequence[Row]
    own_ns: int
    text: str
    times: float
    departure: Departure | None = None

    @property
    def name(self) -> str:
        """What they are called."""
        return self.rows[0].name if len(self.rows) == 1 else self.kind.name


def unusual_layers(
    whole_ns: int,
    kinds: Mapping[LayerKind, Sequence[Row]],
    departures: Mapping[str, Departure],
    device: str,
) -> list[Unusual]:
    """All that is unusual about layers, the longest time first.

    whole_ns: all time, by the clock that counts.
    kinds: the rows of modules by kind, with those that depart kept apart.
    departures: the layers that depart from their kind, by name.
    """
    found: list[Unusual] = []
    for kind, rows in kinds.items():
        found += _long_backward(kind, rows, whole_ns, device)
        departure = departures.get(kind.name)
        if departure and not departure.is_explained:
            own = own_ns(rows[0], device)
            text, times = str(departure), departure.times
            found.append(Unusual(kind, rows, own, text, times, departure))
    return sorted(found, key=lambda each: -each.own_ns)


def _long_backward(
    kind: LayerKind, rows: Sequence[Row], whole_ns: int, device: str
) -> Iterator[Unusual]:
    if any(row.compiled for row in rows):  # its own time is what belongs to nobody else
        return
    forward_ns, backward_ns = (
        sum(own_ns(row.phases[phase], device) for row in rows)
        for phase in ("forward", "backward")
    )
    least_ns = max(LONG_BACKWARD * forward_ns, LEAST_BACKWARD * whole_ns)
    if forward_ns <= 0 or backward_ns < least_ns:
        return
    every = [row.phases["backward"] for row in rows]
    if are_enough(every) and backward_ns - noise_ns(every, device) >= least_ns:
        times = backward_ns / forward_ns
        text = f"backward {times_text(times)} forward"
        yield Unusual(kind, rows, backward_ns, text, times)


# The bottleneck

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


class Lead(NamedTuple):
    """When something that is no module leads a report, and how it is called.

    title: its name.
    least: the least share of the time, if no kind of layers takes more. What should not
        be there at all leads earlier than work that has to be done.
    """

    title: str
    least: float


LEADS: Final[Mapping[BottleneckKind, Lead]] = {
    "data": Lead(PHASE_TITLES["data"], 0.1),
    "optimizer": Lead(PHASE_TITLES["optimizer"], 0.2),
    "waiting": Lead("communication and waiting", 0.1),
    "compiling": Lead(PHASE_TITLES["compiling"], 0.1),
    "garbage": Lead(PHASE_TITLES["garbage"], 0.1),
    "outside": Lead(PHASE_TITLES["outside"], 0.2),
    "host": Lead("the host", 0.2),
}
#: These are mostly of imports, where the start-up is not known apart.
_OF_IMPORTS: Final = ("outside", "garbage")
#: The most parts of a bottleneck that are named, and their least share.
_NAMED: Final = 2
_LEAST_NAMED: Final = 0.01


class Bottleneck(NamedTuple):
    """What takes most.

    own_ns: how much of the time, by the clock that counts.
    phase: in which phase it is, or most of it.
    parts_ns: names of what it consists of -> their times, the longest first; of layers,
        see `Hottest` instead.
    calls: how many calls these are; outside modules, steps, if there are no evaluation
        calls, which are in no step; 0 if there are none.
    waits: of the kind "host": how the device waits, in words.
    backward_ns: outside modules, how much of the time is backward of losses and the
        like, which the phase of that name does not have.
    """

    kind: BottleneckKind
    own_ns: int
    phase: Phase
    parts_ns: Mapping[str, int]
    calls: int = 0
    waits: str = ""
    backward_ns: int = 0


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
    is_loop: whether time outside modules, and of garbage collection, is that of a loop
        (see `View.is_loop`).
    """
    others: dict[BottleneckKind, list[Row]] = {}
    for row in rows:
        kind = _kind_of(row)
        if kind is not None and (is_loop or kind not in _OF_IMPORTS):
            others.setdefault(kind, []).append(row)
    found = [
        _together(kind, alike, profile, shares.device) for kind, alike in others.items()
    ]
    found = [each for each in found if each.own_ns >= _least_ns(each.kind, shares)]
    if hot is not None and hot.own_ns > 0:
        # The first one of those that take as long is the layers.
        found.insert(0, _host(profile, rows, shares, hot) or _layers(hot))
    return max(found, key=lambda each: each.own_ns, default=None)


def _layers(hot: Hottest) -> Bottleneck:
    times = hot.own_times_ns() or {"forward": hot.own_ns}
    phase = max(times, key=times.__getitem__)
    return Bottleneck("module", hot.own_ns, phase, {hot.name: hot.own_ns})


def is_outside(row: Row) -> bool:
    """Whether it is the program itself, or the backward of losses and the like."""
    is_program = row.kind == "outside" and row.name not in IN_NO_STEP
    return is_program or row.name == BACKWARD_NAME


def _kind_of(row: Row) -> BottleneckKind | None:
    if is_outside(row):
        return "outside"
    kind = "waiting" if row.kind == "communication" else row.kind
    return kind if kind in LEADS and row.name not in IN_NO_STEP else None  # type: ignore[return-value]


def _least_ns(kind: BottleneckKind, shares: Shares) -> float:
    return max(LEADS[kind].least * shares.whole_ns, 1)


def _together(
    kind: BottleneckKind, rows: Sequence[Row], profile: ProfileData, device: str
) -> Bottleneck:
    parts = Counter({_plain_name(row): own_ns(row, device) for row in rows})
    whole_ns, calls = parts.total(), sum(row.calls for row in rows)
    backward_ns = 0
    if kind == "outside":
        backward_ns = parts[BACKWARD_NAME.strip("()")]
        parts = functions_outside(profile, device)
        calls = 0 if profile.step_times.evaluations else profile.steps
    phase = _longest_phase(rows, device)
    named = dict(parts.most_common())
    return Bottleneck(kind, whole_ns, phase, named, calls, backward_ns=backward_ns)


def _longest_phase(rows: Iterable[Row], device: str = "") -> Phase:
    sums = summed_phases(row.phases for row in rows)
    return max(sums, key=lambda phase: own_ns(sums[phase], device))


def functions_outside(profile: ProfileData, device: str) -> Counter[str]:
    """The functions that nothing else calls, with their backward: losses and the
    like."""
    times, infos = Counter[str](), profile.modules
    others = {name for name, info in infos.items() if info.kind != "function"}
    for (path, _), totals in profile.cells.items():
        if path[-1] in infos and others.isdisjoint(path):
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
    return found if found.own_ns >= _least_ns("host", shares) else None


def _plain_name(row: Row) -> str:
    """``Adam`` of ``(optimizer) Adam``, ``data loading`` of ``(data loading)``."""
    return row.name.partition(") ")[2] or row.name.strip("()")


def bottleneck_answer(found: Bottleneck, shares: Shares, next_step: str) -> Answer:
    """The answer, if no module takes most."""
    whole_ns = max(shares.whole_ns, 1)
    return Answer(
        "bottleneck",
        f"Bottleneck{shares.device and f' on {shares.device}'}",
        LEADS[found.kind].title,
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
    lead, least_ns = LEADS[found.kind], _LEAST_NAMED * whole_ns
    if found.backward_ns >= least_ns:
        yield f"with {percent(found.backward_ns, whole_ns)} in backward"
    parts = [(name, ns) for name, ns in found.parts_ns.items() if ns >= least_ns]
    if [ns for _, ns in parts] == [found.own_ns]:  # its share is that of all
        parts = [(name, 0) for name, _ in parts if name != lead.title]
    before = "the most in " * bool(found.waits)
    for name, ns in parts[:_NAMED]:
        yield f"{before}{name} {percent(ns, whole_ns)}" if ns else f"{before}{name}"
    if found.calls:
        calls = plural(found.calls, *PHASES[PHASE_OF_KIND[found.kind]].calls)
        yield f"{calls}, {best_time(found.own_ns / found.calls)} each"
    elif not found.waits:
        yield f"{best_time(found.own_ns)} in all"
