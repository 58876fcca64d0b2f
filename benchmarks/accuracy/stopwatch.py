"""Timers made of what torch has: hooks, and its `ModuleTracker`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from torch.utils.module_tracker import ModuleTracker

from accuracy.planted_work import Phase


class Stopwatch:
    """Adds up the times between a beginning and an end, by name."""

    def __init__(self) -> None:
        self.spent_ns: Counter[tuple[Any, Phase]] = Counter()
        self._begun: dict[tuple[Any, Phase], int] = {}

    def begin(self, name: object, phase: Phase) -> None:
        self._begun[name, phase] = perf_counter_ns()

    def end(self, name: object, phase: Phase) -> None:
        start_ns = self._begun.pop((name, phase), None)
        if start_ns is not None:
            self.spent_ns[name, phase] += perf_counter_ns() - start_ns

    def end_all(self) -> None:
        """End what has no end of its own."""
        for name, phase in list(self._begun):
            self.end(name, phase)


class TimedModuleTracker(ModuleTracker):
    """Looks at the clock whenever the tracker says that a module begins or ends."""

    def __init__(self) -> None:
        self.watch = Stopwatch()
        super().__init__()

    def __setattr__(self, attribute: str, value: object) -> None:
        if attribute == "parents":  # a new set: at the end of a backward pass
            self.watch.end_all()
        super().__setattr__(attribute, value)

    def _get_append_fn(self, name: str, is_bw: bool) -> Callable[..., None]:
        append = super()._get_append_fn(name, is_bw)

        def begin(*args: object) -> None:
            if name not in self.parents:
                self.watch.begin(name, "backward" if is_bw else "forward")
            append(*args)

        return begin

    def _get_pop_fn(self, name: str, is_bw: bool) -> Callable[..., None]:
        pop = super()._get_pop_fn(name, is_bw)

        def end(*args: object) -> None:
            self.watch.end(name, "backward" if is_bw else "forward")
            pop(*args)

        return end
