"""The one session of torch's profiler that a process can have, shared by all hooks."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from _thread import get_ident
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import get_native_id
from typing import Any, Final

import torch

from torchprof_hooks.capture.tap import Tap
from torchprof_hooks.capture.torch_names.open_ranges import OpenRanges
from torchprof_hooks.capture.torch_names.profiler import (
    event_tree,
    is_profiler_active,
    make_profiler,
    system_threads,
)
from torchprof_hooks.capture.torch_names.profiler_entry import ProfilerEntry
from torchprof_hooks.capture.trace_reader import EventReader, read_modules
from torchprof_hooks.capture.trace_tracker import TraceTracker, TrackedStep
from torchprof_hooks.profiles.step_trace import StepTrace


@dataclass(frozen=True, slots=True)
class Window:
    """When a traced step began and ended, in nanoseconds of Unix time."""

    start_ns: int
    end_ns: int


class Recording:
    """What a session has recorded. It can be read in any thread, by each of the hooks
    that shared the session."""

    def __init__(
        self,
        profiler: Any,
        tracker: TraceTracker,
        tracked: TrackedStep,
        unix_offset_ns: int,
    ) -> None:
        self.thread = get_native_id()
        self._profiler = profiler
        self._tracker = tracker
        self._tracked = tracked
        self._unix_offset_ns = unix_offset_ns
        self._text: bytes | None = None
        self._lock = threading.Lock()

    def is_lost(self) -> bool:
        """Whether the session recorded nothing: another profiler was started in it."""
        return not event_tree(self._profiler)

    def torch_trace(self) -> bytes:
        """The Chrome trace that torch writes.

        Raises:
            OSError: it could not be written to a temporary file.
        """
        with self._lock:  # torch writes it once
            if self._text is None:
                with tempfile.TemporaryDirectory(prefix="torchprof_hooks") as directory:
                    path = Path(directory, "trace.json")
                    self._profiler.export_chrome_trace(str(path))
                    self._text = path.read_bytes()
            return self._text

    def read(
        self,
        step: int,
        window: Window,
        with_tensors: bool,
        breathe: Callable[[], None] = lambda: None,
    ) -> StepTrace:
        """The recording as plain data.

        step: what the step is called.
        with_tensors: also operations, memory, and the graphs of backward passes.
        breathe: called often, to let other threads work.
        """
        trace = StepTrace(
            step, os.getpid(), self.thread, window.start_ns, window.end_ns
        )
        tracker = self._tracker
        spans = self._tracked.spans
        trace.modules += read_modules(
            tracker.sites, tracker.names.infos, spans, self._unix_offset_ns
        )
        if with_tensors:
            trace.graph_edges += self._tracked.graph_edges
            events = event_tree(self._profiler)
            is_alone = len({event.start_tid for event in events}) == 1
            threads = {} if is_alone else system_threads(self._profiler)
            EventReader(trace, threads, breathe).read(events)
        return trace


#: What is called with the recording, and the window of the step in it.
Deliver = Callable[[Recording, Window], None]


class Hold:
    """One hook's step in a session."""

    def __init__(self, session: _Session) -> None:
        self.session = session
        self.start_ns = time.time_ns()
        # Once the step is over:
        self.window = Window(self.start_ns, self.start_ns)
        self.deliver: Deliver | None = None


class _Session:
    """Torch's profiler and a tracker of ours, running from the start.

    holds: the steps that it records, the one that began first in front.
    recording: once it has stopped.
    """

    def __init__(self, tracker: TraceTracker, with_tensors: bool) -> None:
        self.thread = get_ident()
        self.holds: list[Hold] = []
        self.recording: Recording | None = None
        self._tracker = tracker
        self._profiler = make_profiler(with_tensors)
        self._ranges = OpenRanges()
        self._is_running = True
        with profiler_entry.ours():
            self._profiler.start()
        self._ranges.watch()
        try:
            self._unix_offset_ns = time.time_ns() - time.perf_counter_ns()
            self._tap = Tap(tracker)
        except BaseException:  # an interrupt: leave nothing running, and pass it on
            self._stop_profiler()
            raise

    def give_way(self) -> None:
        """Another profiler is about to start, and would fail: the recording is lost.
        Only the thread that has started a profiler can stop it."""
        if self.thread == get_ident():
            self._stop_profiler()
            self._profiler = None

    def stop(self) -> Recording:
        try:
            self._tap.close()
            tracked = self._tracker.take_step()
        finally:
            self._stop_profiler()
        self.recording = Recording(
            self._profiler, self._tracker, tracked, self._unix_offset_ns
        )
        return self.recording

    def _stop_profiler(self) -> None:
        if self._is_running:
            self._is_running = False
            self._ranges.end()
            with profiler_entry.ours():
                self._profiler.stop()


class _ThreadUsers:
    """The hooks of one thread: whether each wants tensors, and what follows the thread
    for all of them."""

    def __init__(self) -> None:
        self.want_tensors: list[bool] = []
        self.tracker: TraceTracker | None = None

    def add(self, wants_tensors: bool) -> None:
        self.want_tensors.append(wants_tensors)

    def remove(self, wants_tensors: bool) -> None:
        self.want_tensors.remove(wants_tensors)
        if not self.want_tensors:
            self.tracker = None


class KinetoSessions:
    """Runs torch's profiler for hooks that want to trace a step.

    Hooks that trace at the same time share a session. It ends with the step that was
    the first to begin; a step inside of that one (of an inner loop) gets its recording
    then, too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._local = threading.local()
        self._users = 0
        self._is_ready = False

    def join(self, wants_tensors: bool) -> Callable[[], None]:
        """A hook begins in this thread; to be called when it ends is what is returned.

        The sessions of a thread record what any of its hooks wants.
        """
        users = self._own_users()
        users.add(wants_tensors)
        with self._lock:
            self._users += 1
            if self._users == 1:
                profiler_entry.watch(self._give_way)
        self._make_ready()

        def leave() -> None:
            users.remove(wants_tensors)
            with self._lock:
                self._users -= 1
                if not self._users:
                    profiler_entry.unwatch()

        return leave

    def start(self) -> Hold | None:
        """Begin to record a step; None if somebody else is using torch's profiler."""
        with self._lock:
            session = self._session
            if session is None and not self._is_in_use():
                session = self._session = self._new_session()
            if session is None or session.thread != get_ident():
                return None
            hold = Hold(session)
            session.holds.append(hold)
            return hold

    def stop(self, hold: Hold, deliver: Deliver) -> None:
        """The step is over; `deliver` is called as soon as there is a recording."""
        hold.deliver = deliver
        hold.window = Window(hold.start_ns, time.time_ns())
        session = hold.session
        if session.recording is not None:
            deliver(session.recording, hold.window)
        elif session.holds[0] is hold:
            self._end(session)

    def drop(self, hold: Hold) -> None:
        """The step has failed; nothing of it is delivered."""
        session = hold.session
        session.holds.remove(hold)
        is_running = session.recording is None
        if is_running and (not session.holds or session.holds[0].deliver is not None):
            self._end(session)

    def _end(self, session: _Session) -> None:
        self._session = None
        recording = session.stop()
        for hold in session.holds:
            if hold.deliver is not None:
                hold.deliver(recording, hold.window)

    def _is_in_use(self) -> bool:
        return profiler_entry.is_in_use or is_profiler_active()

    def _give_way(self) -> None:
        if self._session is not None:
            self._session.give_way()

    def _make_ready(self) -> None:
        """The first time on CUDA takes seconds, which belong to no step."""
        is_cuda: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if is_cuda and not self._is_ready and not self._is_in_use():
            self._is_ready = True
            profiler = make_profiler(with_tensors=False)
            with profiler_entry.ours():
                profiler.start()
                profiler.stop()

    def _new_session(self) -> _Session:
        users = self._own_users()
        if users.tracker is None:
            users.tracker = TraceTracker()
        return _Session(users.tracker, any(users.want_tensors))

    def _own_users(self) -> _ThreadUsers:
        users: _ThreadUsers | None = getattr(self._local, "users", None)
        if users is None:
            users = self._local.users = _ThreadUsers()
        return users


profiler_entry: Final = ProfilerEntry()

#: Of this process.
kineto_sessions: Final = KinetoSessions()
