"""What looking at steps costs by what is counted, on this machine."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Final, NamedTuple

from torchprof_hooks.capture.core import CORE


class CountedCosts(NamedTuple):
    """Nanoseconds that things cost, before anything is known of the program and the
    machine.

    step: seeing the end of a training step.
    watched: in addition, timing a call from outside of which nothing inside is seen.
    timed: in addition, timing its backward pass, and the optimizer's step, with nothing
        else of ours in the program.
    pause: timing any other call from outside, or a backward pass, or a step of an
        optimizer, as a whole.
    span: each call of a module or function, and each backward pass of one.
    """

    step: int
    watched: int
    timed: int
    pause: int
    span: int


class _Trivial:
    """What a machine is timed with: a call in Python, as hooks are made of."""

    def __call__(self, value: int) -> int:
        return self.same(value)

    def same(self, value: int) -> int:
        return value


#: Costs measured in a program of many short calls, with cold caches. The unit is a call
#: of `_Trivial`: machines differ by several times, and so do quiet and busy ones.
_IN_TRIVIAL_CALLS: Final = {
    "python": CountedCosts(50, 200, 120, 280, 78),
    "native": CountedCosts(50, 35, 120, 120, 45),
}[CORE.name]
#: What a call of `_Trivial` takes where nothing is known of the machine.
USUAL_NS: Final = 60.0
#: The shortest of so many readings counts; each is the shortest of some rows of so many
#: calls: the first are slow, where our code is not in the processor's caches.
READINGS: Final = 16
_ROWS: Final = 3
_IN_A_ROW: Final = 20


def trivial_call_ns() -> float:
    """How long a trivial call takes on this machine now. Finding out takes 5 us."""
    call, shortest_ns = _Trivial(), float("inf")
    for _ in range(_ROWS):
        start_ns = perf_counter_ns()
        for value in range(_IN_A_ROW):
            call(value)
        shortest_ns = min(shortest_ns, perf_counter_ns() - start_ns)
    return shortest_ns / _IN_A_ROW


def counted_costs(call_ns: float) -> CountedCosts:
    """What things cost where a trivial call takes so long."""
    return CountedCosts(*(round(call_ns * calls) for calls in _IN_TRIVIAL_CALLS))
