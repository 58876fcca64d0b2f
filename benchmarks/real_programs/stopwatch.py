"""A stopwatch around the phases of a training program, which knows nothing of the
package: the truth that reports are compared with.

Python imports it before the program (`sitecustomize` calls `start`), which then runs as
it does alone. Started by another script, the program's frames lay on top of others.
Python keeps frames in blocks of 16 kB, and where a call of a hot loop falls on the end
of one, each takes a new block from the system and gives it back: loading data took 9 %
longer for that.

Forward is the time in outermost calls of modules, backward that in calls of the
autograd engine, optimizer that in steps without their closures, data that in asking an
iterator over a DataLoader for a batch, garbage that in full collections; what lies
inside of another phase counts there and nowhere else.
Times are those of the main thread, and are written when the script ends, with what all
took since torch was imported.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch.utils.data import dataloader

Result = TypeVar("Result")
_CALLS: Final = 100


class Own(NamedTuple):
    """Nanoseconds that the stopwatch adds to the time of a phase: by a call that is a
    part of it, and by one that opens it."""

    passing_ns: float
    opening_ns: float


class Stopwatch:
    """Time by phase. Phases inside of phases interrupt them.

    passed: how many calls were a part of the phase that was open.
    opened: how many opened one.
    """

    def __init__(self) -> None:
        self.spent_ns: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()
        self.opened: Counter[str] = Counter()
        self._open: list[str] = []
        self._since_ns = 0
        self._thread = get_ident()

    def around(
        self, phase: str, function: Callable[..., Result], inside: tuple[str, ...] = ()
    ) -> Callable[..., Result]:
        """`function`, with its time booked on `phase`, unless the innermost phase that
        is open is one of `inside`, to which it then belongs."""
        within, opened, main = {phase, *inside}, self._open, self._thread
        passed, entered = self.passed, self.opened

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Result:
            if opened and opened[-1] in within:
                passed[opened[-1]] += 1
                return function(*args, **kwargs)
            if get_ident() != main:
                return function(*args, **kwargs)
            self._switch()
            opened.append(phase)
            entered[phase] += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                opened.pop()

        return timed

    def around_collections(self, moment: str, about: dict[str, Any]) -> None:
        """Python looks through all objects for garbage, or has."""
        if about["generation"] < 2 or get_ident() != self._thread:
            return
        self._switch()
        if moment == "start":
            self._open.append("garbage")
        elif self._open[-1:] == ["garbage"]:
            self._open.pop()

    def without_own(self, own: Own) -> dict[str, float]:
        """Nanoseconds of the phases without what the stopwatch itself took in them: of
        modules that take 20 us, it is a tenth."""
        return {
            phase: spent_ns
            - self.passed[phase] * own.passing_ns
            - self.opened[phase] * own.opening_ns
            for phase, spent_ns in self.spent_ns.items()
        }

    def _switch(self) -> None:
        now_ns = perf_counter_ns()
        if self._open:
            self.spent_ns[self._open[-1]] += now_ns - self._since_ns
        self._since_ns = now_ns


def watch_modules(watch: Stopwatch) -> Own:
    """Put it around calls of modules. Returns what this adds to them."""
    module: Any = torch.nn.Module
    alone_ns = _call_ns()
    # A module called while a pass runs is computed again: a part of backward here.
    inside = ("backward", "data")
    module.__call__ = watch.around("forward", module.__call__, inside)
    watched_ns = watch.around("forward", _call_ns)()
    for counter in (watch.spent_ns, watch.passed, watch.opened):
        counter.clear()
    inside_ns = _call_ns(lambda: watch.spent_ns["forward"])
    for counter in (watch.spent_ns, watch.opened):
        counter.clear()
    return Own(max(watched_ns - alone_ns, 0.0), max(inside_ns - alone_ns, 0.0))


def _call_ns(clock_ns: Callable[[], int] = perf_counter_ns) -> float:
    """How long the call of a module takes that does nothing."""
    module, times_ns = torch.nn.Identity(), []
    for _ in range(_CALLS):
        start_ns = clock_ns()
        for _ in range(_CALLS):
            module(None)
        times_ns.append((clock_ns() - start_ns) / _CALLS)
    return median(times_ns)


def install(watch: Stopwatch) -> None:
    """Put it around what else each program goes through."""
    autograd: Any = torch.autograd
    autograd.backward = watch.around("backward", autograd.backward, ("data",))
    autograd.grad = watch.around("backward", autograd.grad, ("data",))
    optimizer: Any = torch.optim.Optimizer
    wrap = optimizer.profile_hook_step
    optimizer.profile_hook_step = staticmethod(
        lambda step: wrap(_around_step(watch, step))
    )
    for kind in _optimizers(torch.optim.Optimizer):
        if "step" in vars(kind) and not hasattr(kind.step, "hooked"):
            kind.step = _around_step(watch, kind.step)
    gc.callbacks.append(watch.around_collections)
    iterator: Any = dataloader._BaseDataLoaderIter
    iterator.__next__ = watch.around("data", iterator.__next__)


def _around_step(watch: Stopwatch, step: Callable[..., Any]) -> Callable[..., Any]:
    """A step of an optimizer, without the closure that it is given: that is the
    program's."""

    def timed(self: Any, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
        if closure is not None:
            closure = watch.around("closure", closure)
        return step(self, closure, *args, **kwargs)

    return watch.around("optimizer", functools.wraps(step)(timed))


def _optimizers(kind: type[Any]) -> list[type[Any]]:
    below = kind.__subclasses__()
    return below + [deeper for each in below for deeper in _optimizers(each)]


def start(result: Path) -> None:
    """Watch this process, and write the times to a file when it ends."""
    watch = Stopwatch()
    own = watch_modules(watch)
    install(watch)
    began_ns = perf_counter_ns()

    def write() -> None:
        wall_ns = perf_counter_ns() - began_ns
        result.write_text(json.dumps({**watch.without_own(own), "wall": wall_ns}))

    atexit.register(write)
