"""`@profiled`: a report for a class of modules when the program ends."""

from __future__ import annotations

import atexit
import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from typing import TextIO, TypeVar, overload

import torch

from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.tracking.make_tracker import new_tracker
from torchprof_hooks.capture.tracking.subscriptions import ProcessSubscription
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.documents.render.units import check_unit
from torchprof_hooks.hooks.ended_threads import EndedThreads
from torchprof_hooks.measure.interrupted_exit import interrupted_exit
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import TimeUnit
from torchprof_hooks.profiles.options import check_file, print_to

Class = TypeVar("Class", bound=type[torch.nn.Module])

#: Attribute of a decorated class that holds its `ClassProfiler`.
ATTRIBUTE = "__profiler__"


class ClassProfiler:
    """Measures every instance of a class, in every thread, until the program ends.

    Other modules are measured only in calls of an instance of the class. All instances
    are booked under the name of the class. In each thread, wall time counts from the
    first call of any module on.
    """

    def __init__(self, cls: type[torch.nn.Module], unit: TimeUnit, file: TextIO | None):
        self._cls = cls
        self.report_with(unit, file)
        self._threads: EndedThreads[Tracker] = EndedThreads(
            [],
            has_ended=lambda tracker: tracker.retired_ns is not None,
            profile_of=_profile_of,
        )
        self._subscription = ProcessSubscription(self._make_tracker)
        self._pid = os.getpid()
        atexit.register(self._report_at_exit)
        interrupted_exit.registered()

    def report_with(self, unit: TimeUnit, file: TextIO | None) -> None:
        """Set the options of the report."""
        self._unit, self._file = unit, file

    @property
    def profile(self) -> Profile:
        """Everything measured so far."""
        return Profile.of(self._threads.profile)

    def _make_tracker(self) -> Tracker:
        """Make the tracker of a new thread."""
        tracker = new_tracker(ModuleNames(number_roots=False))
        cls = self._cls
        tracker.is_left_out = lambda site, module: (
            site.module is None and not isinstance(module, cls)
        )
        self._threads.add(tracker)
        return tracker

    def _report_at_exit(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork: the parent reports what was measured before the fork
        with interrupted_exit.uninterrupted():
            self._report()

    def _report(self) -> None:
        profile = self.profile
        if profile.is_empty and multiprocessing.parent_process() is not None:
            return  # a worker that only imports the class, such as one that loads data
        # A unit is for tables, so it asks for them.
        report = profile.report(full=self._unit != "auto", unit=self._unit)
        print_to(self._file, f"{self._cls.__qualname__}\n{report}")


def _profile_of(tracker: Tracker) -> ProfileData:
    from torchprof_hooks.capture.snapshot import take_snapshot

    return take_snapshot(tracker, tracker.age_ns)


@overload
def profiled(cls: Class) -> Class: ...
@overload
def profiled(
    *, unit: TimeUnit = ..., file: TextIO | None = ...
) -> Callable[[Class], Class]: ...
def profiled(
    cls: Class | None = None,
    *,
    unit: TimeUnit = "auto",
    file: TextIO | None = None,
) -> Class | Callable[[Class], Class]:
    """Class decorator: measure all instances, and print a report at exit.

    The report comes when the interpreter ends, also after an exception. It covers
    forward, backward and recompute of the instances of the class and of its subclasses,
    and of the modules inside of them. A process that ``multiprocessing`` has started
    prints a report only if it calls an instance. ``cls.__profiler__.profile`` is the
    `Profile` so far.

    Args:
        cls: a class derived from ``nn.Module``.
        unit: as for `Profiler.print_report`; with any but "auto", tables are printed.
        file: where the report goes; standard error by default.

    Raises:
        TypeError: `cls` is no such class, or `file` is not a file open for text.
        ValueError: `unit` is unknown.

    Example:
        >>> @torchprof_hooks.profiled
        ... class Block(nn.Module): ...

        At exit this prints::

            Block
            torchprof_hooks: Block, 2.00sec wall
            Hottest module: Block.fc, 72.0 %: Linear, forward 22.5 %, backward ...
            ...
            module        calls  forward  backward    total     %  own %
            Block            20  0.50sec   1.00sec  1.50sec  75.0    3.0
              fc: Linear     20  0.45sec   0.99sec  1.44sec  72.0   72.0  <- hottest
    """
    if cls is None:
        return partial(profiled, unit=unit, file=file)
    if not (isinstance(cls, type) and issubclass(cls, torch.nn.Module)):
        raise TypeError(f"cls must be a class derived from nn.Module, not {cls!r}")
    check_unit(unit)
    check_file("file", file)
    if ATTRIBUTE not in vars(cls):
        setattr(cls, ATTRIBUTE, ClassProfiler(cls, unit, file))
    else:
        getattr(cls, ATTRIBUTE).report_with(unit, file)
    return cls
