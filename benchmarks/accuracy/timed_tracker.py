"""A timer made of torch's `ModuleTracker`, which says where the program is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import perf_counter_ns

from torch.utils.module_tracker import ModuleTracker

from accuracy.planted_work import Phase


class TimedModuleTracker(ModuleTracker):
    """Looks at the clock whenever the tracker says that a module begins or ends."""

    def __init__(self) -> None:
        self.spent_ns: Counter[tuple[str, Phase]] = Counter()
        self._begun_ns: dict[tuple[str, Phase], int] = {}
        super().__init__()

    def __setattr__(self, attribute: str, value: object) -> None:
        if attribute == "parents":  # a new set: at the end of a backward pass
            for name, phase in list(self._begun_ns):
                self._end(name, phase)
        super().__setattr__(attribute, value)

    def _end(self, name: str, phase: Phase) -> None:
        begun_ns = self._begun_ns.pop((name, phase), None)
        if begun_ns is not None:
            self.spent_ns[name, phase] += perf_counter_ns() - begun_ns

    def _get_append_fn(self, name: str, is_bw: bool) -> Callable[..., None]:
        append = super()._get_append_fn(name, is_bw)

        def begin(*args: object) -> None:
            if name not in self.parents:
                phase: Phase = "backward" if is_bw else "forward"
                self._begun_ns[name, phase] = perf_counter_ns()
            append(*args)

        return begin

    def _get_pop_fn(self, name: str, is_bw: bool) -> Callable[..., None]:
        pop = super()._get_pop_fn(name, is_bw)

        def end(*args: object) -> None:
            self._end(name, "backward" if is_bw else "forward")
            pop(*args)

        return end
