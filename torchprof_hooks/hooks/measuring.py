"""Measures threads for `profile`: their blocks, and their trackers."""

from __future__ import annotations

import sys
import threading
import weakref
from _thread import get_ident
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from torchprof_hooks.instruments import interrupting, of_a_profile, of_a_trace
from torchprof_hooks.kernel.attachments import held_weakly
from torchprof_hooks.kernel.core import CORE
from torchprof_hooks.kernel.make_tracker import new_tracker
from torchprof_hooks.kernel.module_names import ModuleNames
from torchprof_hooks.kernel.thread_steps import ThreadSteps
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.measure.accelerator import current_accelerator

if TYPE_CHECKING:
    from torchprof_hooks.instruments.kernels.device_tracer import DeviceTracer
    from torchprof_hooks.profiles.data import ProfileData


#: For this many ended threads, the objects that measured them are kept: to make a
#: profile of one takes milliseconds, and most programs have few threads.
ENDED_KEPT: Final = 128


class Settings(NamedTuple):
    """The checked options of `profile`.

    kernels: whether a step is traced.
    steps, every: so many steps are measured, of each `every`; None: all, or once.
    of_class: modules count in calls of instances of this class only, and these under
        the names of their classes; None: all modules count.
    """

    functions: bool = False
    memory: bool | str | torch.device = False
    kernels: bool = False
    steps: int | None = None
    every: int | None = None
    of_class: type[torch.nn.Module] | None = None


class _Life:
    """An object to which only a thread refers, so that it dies when the thread ends."""


class ThreadRounds:
    """Measures the blocks of one profiler in one thread, one after the other. A block
    inside another one is a part of that."""

    def __init__(self, settings: Settings) -> None:
        self._depth = 0  # how many blocks are open
        self._steps = make_steps(settings)
        self._tracer = new_tracer(settings.kernels and CORE.module is not None)
        if self._tracer is not None:
            self._steps.at_step = held_weakly(self._trace_between)
        self._life: weakref.ref[_Life] | None = None

    @property
    def is_entered(self) -> bool:
        return self._depth > 0

    def life_of_thread(self) -> object:
        """An object for the running thread to keep until it ends (see `have_ended`)."""
        life, self._thread = _Life(), get_ident()
        self._life = weakref.ref(life, held_weakly(self._thread_ends))
        return life

    def _thread_ends(self, life: object) -> None:
        """The thread ends, or nobody has the profiler any more: nobody will stop it."""
        if self._depth and get_ident() == self._thread and not sys.is_finalizing():
            self._depth = 1
            self.leave(by_exception=False)

    def have_ended(self) -> bool:
        """Whether the thread has ended, and no block is open."""
        is_over = self._life is not None and self._life() is None
        return is_over and not self.is_entered

    def enter(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._steps.start()

    def leave(self, by_exception: bool) -> None:
        if not self._depth:
            raise RuntimeError(
                "this profiler was not entered in this thread, or has been left already"
            )
        self._depth -= 1
        if self._depth == 0:
            self._steps.stop(by_exception)
            if self._tracer is not None:
                self._tracer.drop()

    def _trace_between(self, steps: int) -> bool:
        return self._tracer is not None and trace_between(self._tracer, self._steps)

    def step(self) -> None:
        """The program says that a step ends here."""
        self._steps.step()

    def aside(self) -> AbstractContextManager[None]:
        """What this thread does inside is profiler overhead."""
        return self._steps.aside()

    def snapshot(self) -> ProfileData:
        found = self._steps.profile()
        return found if self._tracer is None else self._tracer.added_to(found)


class MeasuredThreads:
    """What measures the threads of one profiler. The profiles of ended threads become
    one when they are many: a server may start a thread for each request.

    rounds: of threads that run, and of the newest that have ended.
    """

    def __init__(self) -> None:
        self.rounds: list[ThreadRounds] = []
        self._ended: list[ProfileData] = []  # the profile of all others, if any
        self._folding = threading.RLock()

    @property
    def profile(self) -> ProfileData:
        """Everything measured so far, in all threads."""
        with self._folding:
            return _merged([*self._ended, *(r.snapshot() for r in [*self.rounds])])

    def is_entered(self) -> bool:
        """Whether a block is open in any thread."""
        return any(rounds.is_entered for rounds in self.rounds)

    def add(self, rounds: ThreadRounds) -> None:
        """Add what measures a new thread."""
        self.rounds.append(rounds)
        if len(self.rounds) < ENDED_KEPT or not self._folding.acquire(blocking=False):
            return
        try:
            ended = [each for each in [*self.rounds] if each.have_ended()]
            if len(ended) >= ENDED_KEPT:
                self._ended = [_merged([*self._ended, ended[0].snapshot()])]
                self.rounds.remove(ended[0])
        finally:
            self._folding.release()


def _merged(profiles: list[ProfileData]) -> ProfileData:
    from torchprof_hooks.kernel.snapshot import merge_snapshots

    return merge_snapshots(profiles)


def new_tracer(is_wanted: bool) -> DeviceTracer | None:
    """What traces a step; None if it is not wanted: its code is imported only then."""
    if not is_wanted:
        return None
    from torchprof_hooks.instruments.kernels.device_tracer import DeviceTracer

    return DeviceTracer(of_a_trace)


def trace_between(tracer: DeviceTracer, steps: ThreadSteps) -> bool:
    """To be called between two of the steps: end, or begin, a trace. Returns whether
    the next step is traced."""
    is_traced = tracer.between(steps.steps, steps.tracker.tree.names)
    steps.ends_each_step = tracer.waits
    return is_traced


def make_steps(settings: Settings) -> ThreadSteps:
    """The object that measures the steps of this thread: all, or some."""
    make = partial(make_tracker, settings)
    return ThreadSteps(make, steps=settings.steps, every=settings.every)


def make_tracker(
    settings: Settings, names: ModuleNames | None = None, measures: bool = True
) -> Tracker:
    """A tracker for this thread.

    measures: whether it measures what the settings ask for; else, calls alone.
    """
    if not measures:
        return new_tracker(names, observers=[*interrupting()])
    observers = of_a_profile(functions=settings.functions, memory=settings.memory)
    tracker = new_tracker(names, observers=[*observers])
    cls = settings.of_class
    if cls is not None:
        tracker.tree.names.number_roots = False
        tracker.is_left_out = lambda site, module: (
            site.module is None and not isinstance(module, cls)
        )
    if CORE.module is None:
        tracker.not_measured = tuple(map(CORE.needed_for, _needs_native(settings)))
    return tracker


def _needs_native(settings: Settings) -> Iterator[str]:
    """What the reference core does not measure, memory aside, which says so itself."""
    if settings.functions:
        yield "functions"
    if settings.kernels:
        yield "kernels"
    if current_accelerator() is not None:
        yield "times of devices"
