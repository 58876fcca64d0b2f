"""`profile()`, which measures, and `Profiler`, which it returns.

Code for snapshots and reports is imported when it is needed, after measuring, since
every user waits for the imports of this module.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import torch

from torchprof_hooks.files.collector import without_collections
from torchprof_hooks.hooks.measuring import MeasuredThreads, Settings, ThreadRounds
from torchprof_hooks.hooks.results import (
    Rates,
    Saving,
    checked_rates,
    is_out_of_memory,
    print_failure,
)
from torchprof_hooks.kernel.attachments import attachments
from torchprof_hooks.measure.uninterrupted import (
    enter_uninterrupted,
    leave_uninterrupted,
)
from torchprof_hooks.profiles.errors import MemoryUnavailableError
from torchprof_hooks.profiles.options import (
    check_flag,
    check_new_file,
    check_plain_function,
    check_positive,
    checked_steps,
)
from torchprof_hooks.reportable import ProfileReports

if TYPE_CHECKING:
    from torchprof_hooks.profile_type import Profile

P = ParamSpec("P")
R = TypeVar("R")


class Profiler(ProfileReports):
    """What `profile` returns: measures while it is entered, and reports.

    It measures inside of ``with profiler:``, between `start` and `stop`, or in calls of
    a function that it decorates. It can be entered again, also from other threads,
    each of which it measures separately; `profile` is the sum of everything.
    """

    def __init__(self, settings: Settings, saving: Saving, rates: Rates) -> None:
        self._settings = settings
        self._saving = saving
        self._rates = rates
        self._local = threading.local()
        self._threads = MeasuredThreads()

    def __reduce__(self) -> tuple[Any, ...]:  # a copy has not begun to measure
        return type(self), (self._settings, self._saving, self._rates)

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        by_exception = error is not None
        leave_uninterrupted(lambda: self._own_rounds().leave(by_exception))
        if is_out_of_memory(error) and not self._own_rounds().is_entered:
            print_failure(lambda: self.profile)
        if not self._threads.is_entered():
            self._saving.left(lambda: self.profile, by_exception)

    def start(self) -> None:
        """Begin to measure this thread, until `stop`, or until the profiler is garbage
        collected: for code where no ``with`` fits, such as cells of a notebook. In
        nested calls, the outermost `start` and its `stop` count."""
        attachments.retry_cleanup()
        rounds = self._own_rounds()

        def begin() -> None:
            rounds.enter()
            self._saving.entered(self)

        enter_uninterrupted(begin, lambda: rounds.leave(by_exception=True))

    def stop(self) -> None:
        """End the last `start` in this thread.

        Raises:
            RuntimeError: the profiler is not measuring this thread.
        """
        self.__exit__(None, None, None)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Measure every call of `function`.

        Raises:
            TypeError: `function` is not a plain function or method: the body of a
                generator or a coroutine runs after its call has returned.
        """
        check_plain_function("function", function)

        @functools.wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return measured

    def step(self) -> None:
        """End a step of this thread here. From the first call on, steps end where this
        is called, and nowhere else: for loops in which optimizers do not show where
        (see `StepTimes`), or without training.

        Raises:
            RuntimeError: the profiler is not measuring this thread.
        """
        rounds = self._own_rounds()
        if not rounds.is_entered:
            raise RuntimeError("step() must be called in a thread that is measured")
        rounds.step()

    @property
    def profile(self) -> Profile:
        """Everything measured so far, also while the profiler is measuring."""
        with self._aside():
            from torchprof_hooks.profile_type import Profile

            found = Profile.of(self._threads.profile)
            has_ended = not self._threads.is_entered()
            signed = self._saving.signed(found, has_ended=has_ended)
            return self._rates.added(signed)

    def _aside(self) -> AbstractContextManager[None]:
        """What this thread does inside is profiler overhead, if it is measured."""
        rounds: ThreadRounds | None = getattr(self._local, "rounds", None)
        return rounds.aside() if rounds and rounds.is_entered else nullcontext()

    @contextmanager
    def _shown(self) -> Iterator[Profile]:
        with self._aside(), without_collections():
            yield self.profile

    def _own_rounds(self) -> ThreadRounds:
        rounds: ThreadRounds | None = getattr(self._local, "rounds", None)
        if rounds is None:
            rounds = self._local.rounds = ThreadRounds(self._settings)
            self._local.life = rounds.life_of_thread()
            self._threads.add(rounds)
        return rounds


def profile(
    *_unnamed: NoReturn,
    functions: bool = False,
    memory: bool | str | torch.device = False,
    kernels: bool = False,
    steps: int | None = None,
    every: int | None = None,
    peak_flops: float | None = None,
    items_per_step: int = 0,
    save: str | Path | None = None,
    flush_secs: float = 60.0,
    ranks_report: bool = True,
) -> Profiler:
    """Measure forward, backward and recompute of every module, and optimizer steps.

    Returns a `Profiler`: a context manager for a training loop, or a decorator for a
    function. It measures the modules that the entering thread calls, and the backward
    passes that this thread starts. Other threads need a ``with`` of their own.

    Args:
        functions: whether to measure functions as well (see `FunctionHook` for what is
            a function), by the module that calls them and the shapes of their inputs.
            The profile then also has floating-point operations, for the functions for
            which torch has formulas.
        memory: whether to measure memory, in bytes. True measures CUDA's current device
            if the program has initialised CUDA when it enters the block; else the CPU,
            until a module is called whose first parameter is on a device, and from then
            on that one. A device ("cpu", "cuda:1") measures the memory of that device.
            If memory cannot be measured, the report says why.
        kernels: whether to trace one step with torch's profiler, for the busy time of a
            device by module and kernel, and for the times in which it idles
            (`Profile.device_step`; docs/devices.md). The third and fourth step are
            traced, and are in no other table. If that is not possible, the report says
            why.
        steps: how many training steps are measured (see `StepTimes` for what a step
            is); then everything is taken off torch but what counts steps, and their
            time has one row. By default, all.
        every: measure `steps` steps of each `every`, again and again:
            ``every=1000, steps=10``.
        peak_flops: floating-point operations per second that the device can do, without
            sparsity, for MFU and HFU (`Profile.utilisation`). It needs `functions`. By
            default, the data sheet's value for well-known GPUs.
        items_per_step: tokens or samples in a step, for `Profile.items_per_second`.
        save: a file to write the profile to, while the block runs and at its end.
            Each rank of a distributed program writes a file of its own
            (``profile-rank1.json``). The folder must exist.
        flush_secs: seconds between two writes of that file while the block runs.
        ranks_report: whether rank 0 prints to standard error, at exit, which rank the
            others wait for (see `load_ranks`). This needs several ranks, and `save`.

    Raises:
        ValueError: `memory` is not a device of this machine, `steps` is below 1,
            `every` is given without `steps` or not above it, `flush_secs` or
            `peak_flops` is not above 0, `items_per_step` is negative, `peak_flops` is
            given without `functions`, or `save` cannot be written.
        TypeError: a parameter has the wrong type, or no name.

    Example:
        >>> with torchprof_hooks.profile() as prof:
        ...     for batch in loader:
        ...         train_step(batch)
        >>> prof.print_report()  # for the output see `Profiler.report`
    """
    if _unnamed:  # what Python would say is no help to who forgot the brackets
        raise TypeError(
            "profile() takes no function and no model: write @profile() above a "
            "function, with the brackets, or `with profile():` around the calls of a "
            "model; options are given by name"
        )
    check_flag("functions", functions)
    check_flag("kernels", kernels)
    if not isinstance(memory, (bool, str, torch.device)):
        raise TypeError(f"memory must be True, False or a device, not {memory!r}")
    if not isinstance(memory, bool):
        from torchprof_hooks.instruments.memory.meter import memory_meter

        with suppress(MemoryUnavailableError):  # the report will say why
            memory_meter(memory, "memory")
    some = checked_steps(steps, every)
    check_positive("flush_secs", flush_secs)
    check_flag("ranks_report", ranks_report)
    rates = checked_rates(peak_flops, items_per_step, functions)
    path = None if save is None else check_new_file("save", save)
    saving = Saving(path, flush_secs, ranks_report)
    settings = Settings(functions, memory, kernels, *some)
    return Profiler(settings, saving, rates)
