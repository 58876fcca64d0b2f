"""The one session of torch's profiler that a process can have, shared by all hooks."""

from __future__ import annotations

import os
import threading
import time
import weakref
from _thread import get_ident
from collections.abc import Callable
from typing import Final

import torch

from torchprof_hooks.capture.attach.torch_profiler import OpenRanges, OtherProfilers
from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.torch_names.profiler import (
    is_profiler_active,
    make_profiler,
    stop_profiler,
)
from torchprof_hooks.capture.tracing.recording import (
    Recording,
    RecordingOptions,
    Window,
)
from torchprof_hooks.capture.tracing.step_recorder import StepRecorder
from torchprof_hooks.capture.tracking.subscriptions import TrackerSubscription

#: Seconds that a profiler in another thread waits for the end of our session: only the
#: thread that has started the session can end it, and two at a time make torch crash.
PATIENCE: Final = 10.0

#: What is called with a recording, and the window of the step in it.
Deliver = Callable[[Recording, Window], None]


def is_cuda_in_use() -> bool:
    """Whether this process has initialised CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


class SessionStep:
    """One hook's step in a session.

    window: when it ran.
    deliver: what to call with the recording; None while the step is running.
    """

    def __init__(self, session: _Session) -> None:
        self.session = session
        self.deliver: Deliver | None = None
        self.window = Window(time.perf_counter_ns(), 0)

    def end(self, deliver: Deliver) -> None:
        self.window = self.window._replace(end_ns=time.perf_counter_ns())
        self.deliver = deliver


class _Session:
    """Torch's profiler and a tracker of ours, running from the start.

    steps: the steps that it records. The session ends with the first.
    recording: what it has recorded; None while it is running.
    """

    def __init__(self, recorder: StepRecorder, options: RecordingOptions) -> None:
        self.thread = get_ident()
        self.steps: list[SessionStep] = []
        self.recording: Recording | None = None
        self._has_cuda = is_cuda_in_use()
        self._has_ended = threading.Event()
        self._is_lost = False
        self.options = options
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
        self._subscription.close()
        tracked = self._recorder.take_step()
        self._stop_profiler()
        other_profilers.unwatch(self)
        self._has_ended.set()
        self.recording = Recording(
            self._profiler, self._recorder.tracker, tracked, self._is_lost
        )
        return self.recording

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
    """Runs torch's profiler for hooks that want to trace a step.

    Hooks that trace at the same time share a session. It ends with the step that was
    the first to begin; a step inside of that one (of an inner loop) gets its recording
    then, too. Callers must defer interrupts while they call the methods.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: _Session | None = None
        #: What each hook in use wants. Weak, as an interrupt may prevent `leave`.
        self._options: weakref.WeakKeyDictionary[object, RecordingOptions] = (
            weakref.WeakKeyDictionary()
        )
        #: By thread, and the names that they give to modules.
        self._recorders: dict[tuple[int, ModuleNames | None], StepRecorder] = {}
        self._is_ready = False

    def join(self, hook: object, options: RecordingOptions) -> None:
        """A hook begins. Sessions record what any of the hooks wants."""
        with self._lock:
            self._options[hook] = options
        other_profilers.watch(hook)
        self._make_ready()

    def leave(self, hook: object) -> None:
        """A hook ends."""
        with self._lock:
            self._options.pop(hook, None)
            if not self._options:
                self._recorders.clear()
        other_profilers.unwatch(hook)

    def start(self, names: ModuleNames | None = None) -> SessionStep | None:
        """Begin to record a step; None if that is not possible: another profiler of
        torch's is in use, or the session is another thread's, or records too little.

        names: those of the modules, if this begins a session; None: its own.
        """
        self._end_forgotten()
        with self._lock:
            session, options = self._session, self._all_options()
            if session is None and not self._is_in_use():
                recorder = self._own_recorder(names)
                session = self._session = _Session(recorder, options)
            if session is None or session.thread != get_ident():
                return None
            if options.operations > session.options.operations:
                return None
            step = SessionStep(session)
            session.steps.append(step)
            return step

    def stop(self, step: SessionStep, deliver: Deliver) -> None:
        """The step is over; `deliver` is called as soon as there is a recording."""
        step.end(deliver)
        session = step.session
        if session.recording is not None:
            deliver(session.recording, step.window)
        elif session is self._session and session.steps[0] is step:
            self._end(session)

    def drop(self, step: SessionStep) -> None:
        """The step has failed; nothing of it is delivered."""
        session = step.session
        session.steps.remove(step)
        is_own = session is self._session and session.thread == get_ident()
        is_over = not session.steps or session.steps[0].deliver is not None
        if is_own and is_over:
            self._end(session)

    def forget(self) -> None:
        """This is a fork of the process: nothing is recorded here."""
        self._lock = threading.Lock()
        session, self._session = self._session, None
        self._recorders.clear()
        if session is not None:
            session.abandon()

    def give_way(self) -> None:
        """Another profiler is about to start."""
        if self._session is not None:
            self._session.give_way()

    def _all_options(self) -> RecordingOptions:
        return RecordingOptions(*map(any, zip(*self._options.values(), strict=True)))

    def _own_recorder(self, names: ModuleNames | None) -> StepRecorder:
        key = get_ident(), names
        if key not in self._recorders:
            self._recorders[key] = StepRecorder(names)
        return self._recorders[key]

    def _end(self, session: _Session) -> None:
        recording = session.end()
        self._session = None
        for step in session.steps:
            if step.deliver is not None:
                step.deliver(recording, step.window)

    def _end_forgotten(self) -> None:
        """End a session whose last step was dropped in a thread that cannot end it."""
        session = self._session
        if session is not None and session.thread == get_ident() and not session.steps:
            self._end(session)

    def _is_in_use(self) -> bool:
        return other_profilers.is_in_use or is_profiler_active()

    def _make_ready(self) -> None:
        """Start a profiler outside of steps: on CUDA, the first start takes seconds."""
        if is_cuda_in_use() and not self._is_ready and not self._is_in_use():
            self._is_ready = True
            profiler = make_profiler(with_tensors=False)
            with other_profilers.ours():
                profiler.start()
                stop_profiler(profiler)


#: Of this process.
kineto_sessions: Final = KinetoSessions()
#: Watched while a hook is in use.
other_profilers: Final = OtherProfilers(kineto_sessions.give_way)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=kineto_sessions.forget)
