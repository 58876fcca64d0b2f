"""What is unusual about layers that take much time: flags, in the tables of modules,
and what tips say of them.

A layer may depart from its siblings, its backward may take many times its forward, and
its share of the time may be many times its share of the operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from torchprof_hooks.documents.build.departing import Departure, times_text
from torchprof_hooks.documents.build.layers import (
    LayerKind,
    Noise,
    by_kind,
    own_ns,
    summed_phases,
)
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import BACKWARD_PHASES, MODULE_PHASES, Phase
from torchprof_hooks.profiles.rows import Row

#: Backward usually takes twice as long as forward. So many times are unusual, ...
LONG_BACKWARD: Final = 6
#: ... if it takes this share of all time.
LEAST_BACKWARD: Final = 0.05
#: The share of the time in modules is unusual if it is so many times the share of the
#: operations, ...
SLOW_FLOPS: Final = 4
#: ... and so large: activations and normalisations, whose operations do not count, take
#: less.
LEAST_SLOW: Final = 0.3
#: The operations of the other modules are known if this share of their time is in calls
#: whose operations are.
_LEAST_KNOWN: Final = 0.5
#: There is a tip on a layer that departs by so many times and this share of all time.
#: Others may just be larger.
_TIP_TIMES: Final = 3
_TIP_SHARE: Final = 0.1
#: From this share of the time on, one reason is enough.
_MOST: Final = 0.5
#: Calls of functions that are shorter on average are dear for what they do.
_SMALL_CALL_NS: Final = 20_000

#: Functions whose gradient goes to places that are given by numbers.
_SCATTERED: Final = frozenset(
    ("embedding", "embedding_bag", "gather", "getitem", "index", "index_select")
)


class Flag(NamedTuple):
    """Something unusual about layers of a kind.

    kind: the layers.
    name: what they are called.
    own_ns: what it is about takes so long.
    text: a few words, for the line of the layers in a table.
    claim, remedy: a tip: what goes behind the name and the share of the time, and what
        to look at; both are "" if there is nothing to be done.
    """

    kind: LayerKind
    name: str
    own_ns: int
    text: str
    claim: str = ""
    remedy: str = ""


def flags_of(
    profile: ProfileData,
    whole_ns: int,
    modules: Sequence[Row],
    departures: Mapping[str, Departure],
    noise: Noise,
) -> list[Flag]:
    """All flags, the longest time first.

    whole_ns: all time, by the clock that counts.
    modules: the rows of modules.
    departures: those of them that depart from their kind, by name.
    """
    looker = _Looker(profile, whole_ns, modules, noise)
    found: list[Flag] = []
    for kind, rows in by_kind(modules, departures).items():
        layers = _Layers(kind, rows, noise)
        departure = departures.get(kind.name)
        # What says most comes first, and is enough for a tip.
        flags = [*looker.long_backward(layers)]
        if departure and not departure.is_explained:
            flag = looker.departs(layers, departure)
            flags.append(flag._replace(claim="", remedy="") if flags else flag)
        found += flags or looker.few_operations(layers)
    return sorted(found, key=lambda flag: -flag.own_ns)


class _Layers:
    """Layers of a kind, added up."""

    def __init__(self, kind: LayerKind, rows: Sequence[Row], noise: Noise) -> None:
        self.kind = kind
        self.name = rows[0].name if len(rows) == 1 else kind.name
        self.names = {row.name for row in rows}
        self.phases = summed_phases(rows)
        self.flops = sum(row.flops for row in rows)
        self._rows = rows
        self._noise = noise

    @property
    def own_ns(self) -> int:
        """Own time in all phases."""
        return self.in_phases_ns(*MODULE_PHASES)

    def in_phases_ns(self, *phases: Phase) -> int:
        """Own time in these phases."""
        return sum(own_ns(self.phases[phase], self._noise.device) for phase in phases)

    def surely_ns(self, *phases: Phase) -> float:
        """The same without what may be chance; 0.0 if that is not known."""
        every = [row.phases[phase] for row in self._rows for phase in phases]
        if not self._noise.is_known(every):
            return 0.0
        return self.in_phases_ns(*phases) - self._noise.most_ns(every)


class _Looker:
    """Looks for flags in one profile."""

    def __init__(
        self,
        profile: ProfileData,
        whole_ns: int,
        modules: Sequence[Row],
        noise: Noise,
    ) -> None:
        self._profile = profile
        self._device = noise.device
        self._whole_ns = whole_ns
        self._modules_ns = sum(own_ns(row, noise.device) for row in modules)
        self._flops = sum(row.flops for row in modules)
        self._counted_ns = sum(_counted_ns(row) for row in modules)
        self._host_ns = sum(row.self_ns for row in modules)

    def departs(self, layers: _Layers, departure: Departure) -> Flag:
        """A layer that takes longer than others of its kind."""
        flag = Flag(layers.kind, layers.name, layers.own_ns, str(departure))
        is_much = departure.more_ns >= _TIP_SHARE * self._whole_ns
        if departure.times < _TIP_TIMES or not is_much:
            return flag
        times = times_text(departure.times)
        return flag._replace(
            claim=f", {times} the median of the {departure.siblings} others",
            remedy="look at what it does that they do not: shapes and memory layout of "
            "its inputs, hooks on it, its own code.",
        )

    def long_backward(self, layers: _Layers) -> Iterator[Flag]:
        """Layers whose backward takes many times their forward."""
        forward_ns = layers.in_phases_ns("forward")
        backward_ns = layers.in_phases_ns("backward")
        least_ns = max(LONG_BACKWARD * forward_ns, LEAST_BACKWARD * self._whole_ns)
        if forward_ns > 0 and layers.surely_ns("backward") >= least_ns:
            times = times_text(backward_ns / forward_ns)
            yield Flag(
                layers.kind,
                layers.name,
                backward_ns,
                f"backward {times} forward",
                f" in backward, {times} its forward (about 2x is usual)",
                self._reason_of_backward(layers),
            )

    def _reason_of_backward(self, layers: _Layers) -> str:
        calls = [row for row in self._calls(layers) if row.kind == "function"]
        most = max(calls, key=_in_backward_ns, default=None)
        if most is None or 2 * _in_backward_ns(most) < layers.in_phases_ns("backward"):
            name, is_own = "", False
        else:
            name, is_own = most.class_name, most.implementation == "custom"
        if is_own:
            return f"look at the backward of {name}, a torch.autograd.Function."
        if name in _SCATTERED or "Embedding" in layers.kind.class_name:
            return (
                "the gradient of a look-up is as large as what it looks up in, and "
                "deterministic algorithms make it slower. sparse=True, if the "
                "optimizer takes that, or fewer rows make it smaller."
            )
        text = "look for a slow backward of a torch.autograd.Function, hooks on "
        text += "gradients, gradients that are not contiguous, a checkpoint inside"
        if name:
            return f"most of it is in {name}: {text}."
        if self._profile.has_functions:
            return f"{text}."
        return f"{text}; profile(functions=True) tells in which function it is."

    def few_operations(self, layers: _Layers) -> Iterator[Flag]:
        """Layers that take much of the time for few operations."""
        if not self._are_known(layers):
            return
        of_flops = layers.flops / self._flops
        share = layers.own_ns / self._modules_ns
        surely = layers.surely_ns(*MODULE_PHASES) / self._modules_ns
        if surely >= max(LEAST_SLOW, SLOW_FLOPS * of_flops):
            shares = f": {100 * share:.0f} % of the time in modules for "
            shares += f"{100 * of_flops:.0f} % of the operations"
            yield Flag(
                layers.kind,
                layers.name,
                layers.own_ns,
                f"{100 * share:.0f} % of time, {100 * of_flops:.0f} % of FLOPs",
                shares,
                self._reason_of_time(layers),
            )

    def _are_known(self, layers: _Layers) -> bool:
        """Whether operations of the other modules are known, and times are those that
        they take: while a device waits for the host, they are those of launching."""
        if not self._flops or (self._profile.devices and not self._device):
            return False
        own = layers.phases.values()
        host_ns = self._host_ns - sum(totals.self_ns for totals in own)
        counted_ns = self._counted_ns - sum(t.counted_ns for t in own)
        return counted_ns >= _LEAST_KNOWN * host_ns > 0

    def _reason_of_time(self, layers: _Layers) -> str:
        """Why time goes to something else than operations: the first reason that the
        numbers show."""
        calls = [row for row in self._calls(layers) if row.kind == "function"]
        in_functions_ns = sum(row.self_ns for row in calls)
        host_ns = sum(totals.self_ns for totals in layers.phases.values())
        if in_functions_ns < _MOST * host_ns:
            return "most of it is not in functions of torch: look at its Python code."
        most = max(calls, key=lambda row: own_ns(row, self._device))
        if most.implementation == "custom":
            return f"look at {most.class_name}, a torch.autograd.Function."
        number = sum(t.calls for row in calls for t in row.phases.values())
        if in_functions_ns < _SMALL_CALL_NS * number:
            return (
                f"it calls many small functions, most often {most.class_name}: do more "
                "in each, or torch.compile the module."
            )
        return (
            f"{most.class_name} is likely limited by memory, not by operations: fuse "
            "it with what is around it (torch.compile), or use a smaller type."
        )

    def _calls(self, layers: _Layers) -> list[Row]:
        if not self._profile.has_functions:
            return []
        rows = self._profile.rows("call")
        return [row for row in rows if row.module in layers.names]


def _counted_ns(row: Row) -> int:
    return sum(totals.counted_ns for totals in row.phases.values())


def _in_backward_ns(row: Row) -> int:
    return sum(row.phases[phase].self_ns for phase in BACKWARD_PHASES)
