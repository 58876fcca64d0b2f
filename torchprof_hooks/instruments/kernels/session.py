"""Records single steps with torch's profiler, of which a process can run one."""

from __future__ import annotations

import os
import threading
import time
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from typing import Final

import torch

from torchprof_hooks.instruments.kernels.recording import (
    Recording,
    RecordingOptions,
    Window,
)
from torchprof_hooks.instruments.kernels.torch_profiler import (
    OpenRanges,
    OtherProfilers,
)
from torchprof_hooks.kernel.module_names import ModuleNames
from torchprof_hooks.kernel.spans import StepRecorder
from torchprof_hooks.kernel.subscriptions import TrackerSubscription
from torchprof_hooks.kernel.torch_names.profiler import (
    is_profiler_active,
    make_profiler,
    stop_profiler,
)
from torchprof_hooks.measure.uninterrupted import uninterrupted

#: Seconds that a profiler in another thread waits for the end of our session: only the
#: thread that has started the session can end it, and two at a time make torch crash.
PATIENCE: Final = 10.0

#: What is called with a recording, and the window of the step in it.
Deliver = Callable[[Recording, Window], None]


def is_cuda_in_use() -> bool:
    """Whether this process has initialised CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


class _Session:
    """Torch's profiler and a tracker of ours, running from the start.

    start_ns: when it began, by `perf_counter_ns`.
    is_dropped: whether nobody waits for what it records.
    """

    def __init__(self, recorder: StepRecorder, options: RecordingOptions) -> None:
        self.thread = get_ident()
        self.is_dropped = False
        self._has_cuda = is_cuda_in_use()
        self._has_ended = threading.Event()
        self._is_lost = False
        self._recorder = recorder
        self._ranges = OpenRanges()
        self._subscription = TrackerSubscription(recorder.tracker)
        self._profiler = make_profiler(options.tensors, options.operations)
        other_profilers.watch(self)
        with other_profilers.ours():
            self._profiler.start()
        self._is_running = True
        self._ranges.watch(self)
        self._subscription.open()
        self.start_ns = time.perf_counter_ns()

    def give_way(self) -> None:
        """Stop, as another profiler is about to start, and would fail: this recording
        is lost. If it is another thread's, wait for that to end it.

        Raises:
            RuntimeError: the other thread does not end it in time.
        """
        if self.thread == get_ident():
            self._is_lost = True
            self._stop_profiler()
        elif not self._has_ended.wait(PATIENCE):
            raise RuntimeError(
                "another thread is tracing a step with ProfilerHook, and torch can "
                "have one profiler at a time: start this one when the step is over"
            )

    def end(self) -> Recording:
        """Stop everything."""
        tracker = self._recorder.tracker
        # What has ended the step, such as an optimizer, is still running.
        tracker.abort_down_to(tracker.outside, time.perf_counter_ns())
        self._subscription.close()
        tracked = self._recorder.take_step()
        self._stop_profiler()
        other_profilers.unwatch(self)
        self._has_ended.set()
        return Recording(self._profiler, self._recorder.tracker, tracked, self._is_lost)

    def abandon(self) -> None:
        """This is a fork of the process: nothing is recorded here."""
        self._subscription.close()
        other_profilers.unwatch(self)
        if self._has_cuda:  # a fork must not touch CUDA
            self._ranges.unwatch(self)
        else:
            self._stop_profiler()

    def _stop_profiler(self) -> None:
        if self._is_running:
            self._is_running = False
            self._ranges.end(self)
            with other_profilers.ours():
                stop_profiler(self._profiler)


class KinetoSessions:
    """Runs torch's profiler for hooks that trace a step: one at a time. Callers must
    defer interrupts while they call the methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._is_ready = False

    def start(
        self, make_recorder: Callable[[], StepRecorder], options: RecordingOptions
    ) -> _Session | None:
        """Begin to record a step; None if that is not possible: another hook records
        one, or another profiler of torch's is in use."""
        with self._lock:
            left = self._session
            if left is not None and left.is_dropped and left.thread == get_ident():
                self._end(left)
            if self._session is None and not self._is_in_use():
                self._session = _Session(make_recorder(), options)
                return self._session
            return None

    def stop(self, session: _Session) -> Recording | None:
        """The step is over. None in a fork, where nothing is recorded."""
        return self._end(session) if session is self._session else None

    def drop(self, session: _Session) -> None:
        """The step has failed. Only the thread that has begun to record can end that:
        from another one, this leaves it to the next `start` there."""
        session.is_dropped = True
        if session is self._session and session.thread == get_ident():
            self._end(session)

    def forget(self) -> None:
        """This is a fork of the process: nothing is recorded here."""
        self._lock = threading.Lock()
        session, self._session = self._session, None
        if session is not None:
            session.abandon()

    def give_way(self) -> None:
        """Another profiler is about to start."""
        if self._session is not None:
            self._session.give_way()

    def make_ready(self) -> None:
        """Start a profiler outside of steps: on CUDA, the first start takes seconds."""
        if is_cuda_in_use() and not self._is_ready and not self._is_in_use():
            self._is_ready = True
            profiler = make_profiler(with_tensors=False)
            with other_profilers.ours():
                profiler.start()
                stop_profiler(profiler)

    def _end(self, session: _Session) -> Recording:
        recording = session.end()
        self._session = None
        return recording

    def _is_in_use(self) -> bool:
        return other_profilers.is_in_use or is_profiler_active()


class RecordedStep:
    """Records steps for one hook, one at a time. If a signal arrives while torch's
    profiler starts or stops, its handler runs afterwards.

    options: what to record.
    """

    def __init__(self, options: RecordingOptions) -> None:
        self._options = options
        self._session: _Session | None = None
        #: Of the thread that has recorded last: it keeps its sites.
        self._recorder: StepRecorder | None = None

    @property
    def is_running(self) -> bool:
        """Whether a step is being recorded."""
        return self._session is not None

    def join(self) -> None:
        """The hook is in use from now on."""
        other_profilers.watch(self)
        kineto_sessions.make_ready()

    def leave(self) -> None:
        """The hook is not in use any more."""
        self._recorder = None
        other_profilers.unwatch(self)

    def begin(self, names: ModuleNames | None = None) -> bool:
        """A step begins. Returns whether it is recorded: not while another hook records
        one, or another profiler of torch is running.

        names: those of the modules; None: its own.
        """
        with uninterrupted():
            self._session = kineto_sessions.start(
                partial(self._recorder_here, names), self._options
            )
        return self.is_running

    def end(self, deliver: Deliver) -> None:
        """The step is over; `deliver` gets the recording, if there is one."""
        if self._session is not None:
            with uninterrupted():
                session, self._session = self._session, None
                window = Window(session.start_ns, time.perf_counter_ns())
                recording = kineto_sessions.stop(session)
                if recording is not None:
                    deliver(recording, window)

    def drop(self) -> None:
        """Give up the step, if one is being recorded."""
        if self._session is not None:
            with uninterrupted():
                session, self._session = self._session, None
                kineto_sessions.drop(session)

    def _recorder_here(self, names: ModuleNames | None) -> StepRecorder:
        if self._recorder is None or self._recorder.tracker.thread != get_ident():
            self._recorder = StepRecorder(names)
        return self._recorder


#: Of this process.
kineto_sessions: Final = KinetoSessions()
#: Watched while a hook is in use.
other_profilers: Final = OtherProfilers(kineto_sessions.give_way)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=kineto_sessions.forget)
