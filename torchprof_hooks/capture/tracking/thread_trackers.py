"""A tracker for each thread that needs one."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

from torchprof_hooks.capture.attach.attachments import Attachment, attachments
from torchprof_hooks.capture.attach.engine import engine_patch
from torchprof_hooks.capture.torch_names.autograd import (
    current_graph_task,
)
from torchprof_hooks.capture.tracking.meters.meters import (
    counted_tensors,
    counts_tensors,
)
from torchprof_hooks.capture.tracking.tracker import Tracker


class ThreadTrackers:
    """A tracker for each thread that needs one, made when it is first asked for.

    passes: while this has users, the trackers see backward passes, until their threads
        end.
    trackers: those of threads that have not ended.
    """

    def __init__(self, make_tracker: Callable[[], Tracker]) -> None:
        self._make_tracker = make_tracker
        self._local = threading.local()
        self.trackers: list[Tracker] = []
        self.passes = _SeenPasses(self)

    def here(self) -> Tracker:
        """The tracker that the running thread works for: its own; or in one of the
        engine's threads, that of the thread which started the pass."""
        if current_graph_task() != -1:
            for known in [*self.trackers]:
                if known.works_here():
                    return known
        tracker: Tracker | None = getattr(self._local, "tracker", None)
        if tracker is None:
            tracker = self._local.tracker = self._make_tracker()
            self._local.lifetime = _Lifetime(tracker, self)
            self.trackers.append(tracker)
            attachments.renew(self.passes)
        return tracker

    def ended(self, tracker: Tracker) -> None:
        """The thread of `tracker` has ended."""
        # In place: another thread may be adding its own. `tracker` may be missing.
        with suppress(ValueError):
            self.trackers.remove(tracker)


class _SeenPasses(Attachment):
    """Shows backward passes to the trackers of some threads. It refers to them weakly:
    their hook may refer to the module that is the user."""

    def __init__(self, threads: ThreadTrackers) -> None:
        super().__init__()
        self._threads = weakref.ref(threads)

    def put_on(self) -> None:
        for tracker in self._trackers():
            if tracker.backward is not None:
                attachments.attach(engine_patch, tracker)
                if counts_tensors(tracker):
                    attachments.attach(counted_tensors, tracker)

    def take_off(self) -> bool:
        for tracker in self._trackers():
            attachments.detach(engine_patch, tracker)
            attachments.detach(counted_tensors, tracker)
        return True

    def _trackers(self) -> list[Tracker]:
        threads = self._threads()
        return [] if threads is None else [*threads.trackers]


class TargetSubscription:
    """A hook on one target, until `close`, or until the target is gone.

    name: the name of the hook there.
    hook: the hook itself; its trackers are those in `threads`.
    """

    def __init__(self, name: str, hook: object, threads: ThreadTrackers) -> None:
        self.name = name
        self.hook = hook
        self._threads = threads
        attachments.attach(threads.passes, self)

    def close(self) -> None:
        """Disconnect the hook."""
        attachments.detach(self._threads.passes, self)


class _Lifetime:
    """Dies with a thread, and retires its tracker: the thread's number may then be
    given to another thread."""

    def __init__(self, tracker: Tracker, threads: ThreadTrackers) -> None:
        self._tracker = tracker
        self._threads = weakref.ref(threads)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_ending():  # modules are empty by now, this one, too
            return
        self._tracker.retire()
        threads = self._threads()
        if threads is not None:
            threads.ended(self._tracker)
        attachments.give_up(engine_patch, self._tracker)
        attachments.give_up(counted_tensors, self._tracker)
