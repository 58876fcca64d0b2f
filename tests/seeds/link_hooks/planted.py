"""Steps of a known time, and what timers of modules and of functions see of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from tests.fake_clock import burn
from tests.functions import ONE, Runs, x
from tests.helpers import close, occurrences
from tests.planted import Work
from torchprof_hooks import function_hooks, link_hooks


class Timed(NamedTuple):
    """A kind of timer, and a step of the times of `history`, of which one target takes
    those of `local`.

    ended: how many calls have ended where the step does what it is given.
    """

    hook: Any
    step: Callable[..., None]
    target: Any
    history: list[tuple[str, float]]
    local: list[tuple[str, float]]
    total: float
    ended: int

    @property
    def fields(self) -> dict[str, type]:
        """Of each row of the sums: numbers of Python's, not of numpy's."""
        return {"elapsed_time": float, "occurrence": int}

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.history]

    def check_sums(self, hook: Any, steps: int) -> None:
        assert occurrences(hook) == Counter(self.names * steps)
        for name, sums in hook.summary().items():
            seconds = sum(s for called, s in self.history if called == name)
            assert sums["elapsed_time"] == close(steps * seconds)
        assert hook.total_time() == close(steps * self.total)  # outermost calls only


class Middle(nn.Module):
    """Calls what it is told to between two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Work(4, 6), Work(1, 2)

    def forward(self, x: Any, middle: Callable[[], object] = int) -> Any:
        x = self.first(x)
        middle()
        return self.last(x)


def links() -> Timed:
    model = Middle()

    def step(middle: Callable[[], object] = int) -> None:
        model(INPUT, middle).sum().backward(ONE)

    first, last = ("Work", 0.004), ("Work", 0.001)
    history = [first, last, ("Middle", 0.005)]
    return Timed(link_hooks.TimerHook, step, model.first, history, [first], 0.005, 1)


class Inner(Runs):
    """The same under another name."""


def functions() -> Timed:
    def step(middle: Callable[[], object] = int) -> None:
        def outer() -> None:
            burn(1)
            Inner.apply(INPUT, lambda: burn(4))
            middle()

        Runs.apply(INPUT, outer, lambda: burn(6)).sum().backward(ONE)

    inner = ("Inner", 0.004)
    history = [
        *[("clone", 0.0), inner, ("clone", 0.0), ("Runs", 0.005), ("sum", 0.0)],
        *[("sum", 0.0), ("Runs", 0.006)],
    ]
    return Timed(function_hooks.TimerHook, step, Inner, history, [inner], 0.011, 2)


INPUT = x()
TIMERS: dict[str, Callable[[], Timed]] = {"modules": links, "functions": functions}
