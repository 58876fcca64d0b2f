"""Measures one thread for `profile`: its measured blocks, and its tracker."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

import torch

from torchprof_hooks.capture.attach.attachments import held_weakly
from torchprof_hooks.capture.attach.blocks import Block, Held
from torchprof_hooks.capture.core import CORE
from torchprof_hooks.capture.duty import Duty
from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.thread_steps import ThreadSteps
from torchprof_hooks.capture.tracking.make_tracker import new_tracker
from torchprof_hooks.capture.tracking.meters.device import device_meters
from torchprof_hooks.capture.tracking.meters.memory import MemoryMeter, memory_meter
from torchprof_hooks.capture.tracking.meters.meters import Meter, meters_of
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.profiles.errors import MemoryUnavailableError

if TYPE_CHECKING:
    from torchprof_hooks.capture.functions.operator_calls import OperatorCalls
    from torchprof_hooks.capture.tracing.device_tracer import DeviceTracer
    from torchprof_hooks.profiles.data import ProfileData


class Settings(NamedTuple):
    """The checked options of `profile`.

    kernels: whether a step is traced. Then steps have to be told apart, so there is a
        budget, if only one without a limit.
    max_overhead: the budget as a share; None: there is no budget, all steps are
        measured; from 1 on: a budget without a limit.
    """

    functions: bool = False
    memory: bool | str | torch.device = False
    max_overhead: float | None = None
    kernels: bool = False


class _Life:
    """An object to which only a thread refers, so that it dies when the thread ends."""


class ThreadRounds:
    """Measures the blocks of one profiler in one thread, one after the other. A block
    inside another one is a part of that."""

    def __init__(self, settings: Settings) -> None:
        self._blocks: list[Block] = []
        self._steps = make_steps(settings)
        self._tracer = new_tracer(settings.kernels)
        if self._tracer is not None:
            self._steps.at_step = held_weakly(self._trace_between)
        self._life: weakref.ref[_Life] | None = None

    @property
    def is_entered(self) -> bool:
        return bool(self._open_blocks())

    def life_of_thread(self) -> object:
        """An object for the running thread to keep until it ends (see `have_ended`)."""
        life = _Life()
        self._life = weakref.ref(life)
        return life

    def have_ended(self) -> bool:
        """Whether the thread has ended, and no block is open."""
        is_over = self._life is not None and self._life() is None
        return is_over and not self.is_entered

    def renew(self) -> None:
        """Begin another profile of this thread, which keeps what was learned of its
        steps. What was traced is in the first one."""
        self._steps.renew()
        if self._tracer is not None and not self._tracer.waits:
            self._tracer = None

    def enter(self, held: Held | None) -> None:
        self._blocks = self._open_blocks()
        is_outermost = not self._blocks
        block = Block(held, held_weakly(self._close_block))
        self._blocks.append(block)
        block.begin(self._steps.start if is_outermost else bool)  # `bool` does nothing

    def leave(self, by_exception: bool) -> None:
        self._open_blocks()[-1].end(by_exception)
        self._blocks = self._open_blocks()

    def _open_blocks(self) -> list[Block]:
        return [block for block in self._blocks if not block.has_ended]

    def _close_block(self, by_exception: bool) -> None:
        if len(self._open_blocks()) == 1:
            self._steps.stop(by_exception)
            if self._tracer is not None:
                self._tracer.drop()

    def _trace_between(self, steps: int) -> bool:
        return self._tracer is not None and trace_between(self._tracer, self._steps)

    def snapshot(self) -> ProfileData:
        found = self._steps.profile()
        return found if self._tracer is None else self._tracer.added_to(found)


def new_tracer(is_wanted: bool) -> DeviceTracer | None:
    """What traces a step; None if it is not wanted: its code is imported only then."""
    if not is_wanted:
        return None
    from torchprof_hooks.capture.tracing.device_tracer import DeviceTracer

    return DeviceTracer()


def trace_between(tracer: DeviceTracer, steps: ThreadSteps) -> bool:
    """To be called between two of the steps: end, or begin, a trace. Returns whether
    the next step is traced."""
    is_traced = tracer.between(steps.steps, steps.tracker.names)
    steps.ends_each_step = tracer.waits
    return is_traced


def make_steps(settings: Settings) -> ThreadSteps:
    """The object that measures the steps of this thread: all, or as a budget allows."""

    def make(names: ModuleNames) -> tuple[Tracker, str]:
        return make_tracker(settings, names)

    duty, budget = None, settings.max_overhead
    if budget is None and settings.kernels:
        budget = 1.0
    if budget is not None:
        duty = Duty(budget)
    return ThreadSteps(make, duty=duty)


def make_tracker(
    settings: Settings, names: ModuleNames | None = None
) -> tuple[Tracker, str]:
    """A tracker for this thread, and why it cannot measure memory: "" if it can, or if
    the settings do not ask for memory."""
    meters: list[Meter] = [*device_meters()]
    unmeasured = ""
    if settings.memory:
        device = None if settings.memory is True else settings.memory
        try:
            meters.append(memory_meter(device))
        except MemoryUnavailableError as error:
            unmeasured = str(error)
    functions = _new_functions() if settings.functions else None
    tracker = new_tracker(names, functions=functions, meters=meters)
    if settings.functions and functions is None:
        tracker.not_measured = (
            f"functions: they need the native core, which does not run: {CORE.reason}",
        )
    for meter in meters_of(tracker, MemoryMeter):
        if meter.knows_owners:  # imported only where memory is measured
            from torchprof_hooks.capture.tracking.meters.memory_owners import (
                MemoryOwners,
            )

            tracker.memory_owners = MemoryOwners(
                meter.log, tracker, forgets=not meter.counts_tensors
            )
    return tracker, unmeasured


def _new_functions() -> OperatorCalls | None:
    """What measures functions; None without the native core. Its code is imported only
    if it is needed."""
    if CORE.module is None:
        return None
    from torchprof_hooks.capture.functions.operator_calls import OperatorCalls

    return OperatorCalls()
