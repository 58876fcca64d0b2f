"""Which modules are hot; layers of a kind count together. Where a device always has
something to do, times are those of its clock: the host waits for it in whatever call it
happens to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from torchprof_hooks.profiles.names import MODULE_PHASES, Phase
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.totals import NOTHING, Totals
from torchprof_hooks.reports.program.part import PHASE_TITLES, shown_times_ns
from torchprof_hooks.reports.table import percent
from torchprof_hooks.reports.time_tree import without_numbers

R = TypeVar("R", bound=Row)

#: If a device was asked less often than this, the share of its answers tells nothing.
LEAST_ASKED: Final = 20


class Kind(NamedTuple):
    """Modules whose names differ in numbers alone, of one class.

    name: what their names have in common, ``Net.blocks.*.norm``; of other rows, the
        name.
    """

    name: str
    class_name: str


class Hottest(NamedTuple):
    """The layers of the kind with the most own time.

    device: the device whose clock that is by, "" for the host's.
    """

    kind: Kind
    rows: Sequence[Row]
    own_ns: int
    device: str = ""

    @property
    def name(self) -> str:
        """The name of the module, if there is only one, or of the kind."""
        return self.rows[0].name if len(self.rows) == 1 else self.kind.name

    def own_times_ns(self) -> dict[Phase, int]:
        """Their own time by phase, without phases in which they have none."""
        sums = {
            phase: sum(_own_ns(row.phases[phase], self.device) for row in self.rows)
            for phase in MODULE_PHASES
        }
        return {phase: own_ns for phase, own_ns in sums.items() if own_ns}


def hottest(rows: Iterable[Row], device: str = "") -> Hottest | None:
    """The layers of the kind with the most own time, None if there are no rows.

    device: by which device's clock (see `busy_device`), "" for the host's.
    """
    found = []
    for kind, alike in by_kind(rows).items():
        every = (totals for row in alike for totals in row.phases.values())
        own_ns = sum(_own_ns(totals, device) for totals in every)
        found.append(Hottest(kind, alike, own_ns, device))
    return max(found, key=lambda each: each.own_ns, default=None)


def _own_ns(totals: Totals, device: str) -> int:
    return totals.device_self_ns if device else totals.self_ns


class Shares(NamedTuple):
    """Times of phases, by the clock that tells what takes most.

    device: whose clock it is (see `busy_device`), "" for the host's.
    times_ns: of each phase.
    whole_ns: what shares are shares of.
    """

    device: str
    times_ns: Counter[str]
    whole_ns: int

    @property
    def on_device(self) -> str:
        """`` on cuda``, or ""."""
        return f" on {self.device}" * bool(self.device)


def shares_of(profile: Profile) -> Shares:
    """The times of a busy device, where there is one; else, of the host."""
    device = busy_device(profile)
    if not device:
        return Shares("", shown_times_ns(profile), profile.wall_ns)
    times: Counter[str] = Counter()
    for (_, phase), totals in profile.cells.items():
        times[phase] += totals.device_self_ns
    return Shares(device, times, times.total())


class Answer(NamedTuple):
    """A question, the answer in a few words, and what it rests on, if that is told."""

    question: str
    answer: str
    evidence: str = ""


def answers(hot: Hottest | None, shares: Shares) -> Iterator[Answer]:
    """Which module is the hottest, and whether forward or backward takes longer."""
    on_device, times, whole_ns = shares.on_device, shares.times_ns, shares.whole_ns
    if hot is not None and hot.own_ns > 0:
        parts = [f"{p} {percent(ns, whole_ns)}" for p, ns in hot.own_times_ns().items()]
        if hot.kind.class_name != hot.name:
            count = f"{len(hot.rows)} " * (len(hot.rows) > 1)
            parts.insert(0, f"{count}{hot.kind.class_name}")
        evidence = f"{percent(hot.own_ns, whole_ns)}: {', '.join(parts)}"
        yield Answer(f"Hottest module{on_device}", hot.name, evidence)
    if times.total() <= 0:
        return
    phase, most_ns = times.most_common(1)[0]
    answer = f"{phase}, {percent(most_ns, whole_ns)}"
    if phase not in MODULE_PHASES:
        answer = f"neither; {PHASE_TITLES[phase]}, {percent(most_ns, whole_ns)}"
        for inside, inside_ns in times.most_common():
            if inside in MODULE_PHASES and inside_ns > 0:
                answer += f"; {inside} {percent(inside_ns, whole_ns)}"
    yield Answer(f"Forward or backward{on_device}", answer)


def busy_device(profile: Profile) -> str:
    """The device that has something to do at most begins and ends of calls, "" if there
    is none, or it is not known."""
    asked, waits = profile.device_asked, profile.device_waits
    is_known = asked >= LEAST_ASKED and len(profile.devices) == 1
    return profile.devices[0] if is_known and waits < asked / 2 else ""


def by_kind(rows: Iterable[R]) -> dict[Kind, list[R]]:
    """The layers of each kind."""
    kinds: dict[Kind, list[R]] = {}
    for row in rows:
        kinds.setdefault(kind_of(row), []).append(row)
    return kinds


def summed_phases(rows: Iterable[Row]) -> dict[Phase, Totals]:
    """What is booked on all of the rows together, by phase."""
    sums: dict[Phase, Totals] = {}
    for row in rows:
        for phase, totals in row.phases.items():
            sums[phase] = sums.get(phase, NOTHING) + totals
    return sums


def kind_of(row: Row) -> Kind:
    """The kind of a row: rows of one kind count together."""
    name = without_numbers(row.name) if row.kind == "module" else row.name
    return Kind(name, row.class_name)
