"""Layers that depart from the others of their kind: folded together, these would hide
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from torchprof_hooks.documents.build.layers import Noise, by_kind, own_ns
from torchprof_hooks.profiles.names import MODULE_PHASES
from torchprof_hooks.profiles.rows import Row

#: A layer departs if its own time is more than so many medians of the others' of its
#: kind, ...
_TIMES: Final = 1.5
#: ... if what it takes longer than these is this share of all time, and
#: no chance.
_LEAST: Final = 0.05
#: Of two layers, either may be the one that departs.
_FEWEST: Final = 3
#: Ratios above this print as ">99x".
_MANY: Final = 99


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
        return self.times < _TIMES * self.flop_times

    def __str__(self) -> str:
        """``3.1x its siblings``."""
        return f"{times_text(self.times)} its siblings"


def times_text(times: float) -> str:
    """``3.1x``, ``31x``, ``>99x``."""
    if times > _MANY:
        return f">{_MANY}x"
    return f"{times:.1f}x" if times < 10 else f"{times:.0f}x"


def departing(
    rows: Iterable[Row], whole_ns: float, noise: Noise
) -> Mapping[str, Departure]:
    """The layers that depart from their kind, by name.

    whole_ns: all time.
    """
    found: dict[str, Departure] = {}
    for alike in by_kind(rows).values():
        if len(alike) < _FEWEST:
            continue
        for row in alike:
            departure = _departure(row, alike, noise.device)
            every = [row.phases[phase] for phase in MODULE_PHASES]
            least_ns = max(_LEAST * whole_ns, noise.most_ns(every))
            is_more = departure.times > _TIMES and departure.more_ns >= least_ns
            if is_more and noise.is_known(every):
                found[row.name] = departure
    return found


def _departure(row: Row, alike: Sequence[Row], device: str) -> Departure:
    siblings = [each for each in alike if each is not row]
    own, usual_ns = own_ns(row, device), median(own_ns(s, device) for s in siblings)
    usual_flops = median(s.flops for s in siblings)
    return Departure(
        len(siblings),
        own / max(usual_ns, 1),
        own - usual_ns,
        row.flops / usual_flops if usual_flops > 0 else 0.0,
    )
