"""Shows trackers what torch-function modes do not see: custom autograd Functions, and
functions made by torch.compile."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.compiler_exemption import exempt_from_compilation
from torchprof_hooks.capture.function_mode import (
    FunctionMode,
    hide_modes,
    show_modes,
)
from torchprof_hooks.capture.function_names import transformed_name
from torchprof_hooks.capture.function_tracker import FunctionTracker
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.thread_trackers import ThreadTrackers
from torchprof_hooks.capture.torch_names.compiler import (
    EvalFrameSetter,
    compiled_call_on_stack,
    is_compiler_loaded,
    replace_eval_frame_setter,
    restore_eval_frame_setter,
)
from torchprof_hooks.capture.torch_names.custom_functions import (
    Around,
    FunctionApplications,
    Run,
)


class FunctionTaps:
    """The one place that is told of custom Functions and of compiled functions, for as
    long as anybody listens."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # see `BackwardEntry`
        self._trackers: tuple[weakref.ref[FunctionTracker], ...] = ()
        #: Those that follow one class of custom Functions, in any thread.
        self._of_class: weakref.WeakKeyDictionary[type, list[ThreadTrackers]] = (
            weakref.WeakKeyDictionary()
        )
        self._at_death: weakref.WeakKeyDictionary[type, weakref.finalize[[], type]] = (
            weakref.WeakKeyDictionary()
        )
        self._applications = FunctionApplications(self._around)
        self._regions = _CompiledRegions(self.here)

    def show_functions(self, tracker: FunctionTracker) -> None:
        """Let `tracker` see all functions that its thread calls."""
        self.add(tracker)
        tracker.at_unknown = self.look_for_compiler
        tracker.name_nodes(True)
        tracker.open_mode()

    def hide_functions(self, tracker: FunctionTracker) -> None:
        """Undo `show_functions`."""
        tracker.close_mode()
        tracker.name_nodes(False)
        self.remove(tracker)

    def add(self, tracker: FunctionTracker) -> None:
        """Tell `tracker` from now on."""
        with self._lock:
            reference = weakref.ref(tracker, lambda _: self.remove(None))
            self._trackers = (*self._trackers, reference)
            self._listen()

    def remove(self, tracker: FunctionTracker | None) -> None:
        """Forget `tracker`, and those that are gone."""
        with self._lock:
            self._trackers = tuple(
                reference
                for reference in self._trackers
                if reference() is not None and reference() is not tracker
            )
            self._listen()

    def add_to_class(self, cls: type, threads: ThreadTrackers) -> None:
        """Tell the trackers in `threads` of calls of `cls`."""
        with self._lock:
            if cls not in self._of_class:
                self._at_death[cls] = weakref.finalize(cls, self._listen)
                self._at_death[cls].atexit = False
            self._of_class.setdefault(cls, []).append(threads)
            self._listen()

    def remove_from_class(self, cls: type, threads: ThreadTrackers) -> None:
        """Undo `add_to_class`."""
        with self._lock:
            self._of_class[cls].remove(threads)
            if not self._of_class[cls]:
                del self._of_class[cls]
                self._at_death.pop(cls).detach()
            self._listen()

    def here(self) -> list[FunctionTracker]:
        """The trackers of all functions that the running thread works for."""
        living = (reference() for reference in self._trackers)
        return [t for t in living if t is not None and t.works_here()]

    def _listen(self) -> None:
        """Be told what somebody wants to know, and nothing else."""
        if self._trackers or self._of_class:
            self._applications.start()
        else:
            self._applications.stop()
        if self._trackers:
            self._regions.start()
        else:
            self._regions.stop()

    def look_for_compiler(self) -> None:
        """torch.compile may have come into use since somebody began to listen."""
        if not self._regions.is_told and is_compiler_loaded():
            with self._lock:
                exempt_from_compilation()
                self._listen()

    def followers(self, cls: type) -> list[FunctionTracker]:
        """The trackers here that may want to know of a call of `cls`."""
        of_class = [threads.here() for threads in self._of_class.get(cls, ())]
        return [t for t in of_class if isinstance(t, FunctionTracker)] + self.here()

    def _around(self, cls: Any) -> Around | None:
        """What measures an application of `cls`, as far as anybody wants to know."""
        if is_dynamo_compiling():
            return None
        calls = [
            _Call(tracker, site, transformed_name(cls))
            for tracker in self.followers(cls)
            if tracker.transformed != cls.__name__
            and (site := tracker.find_function(cls)) is not None
        ]
        return partial(_around, calls) if calls else None


class _Call(NamedTuple):
    """An application of a custom Function as one tracker sees it.

    made_for: name of the Function that ``torch.func`` made the class for, if any.
    """

    tracker: FunctionTracker
    site: Site
    made_for: str | None


def _around(calls: list[_Call], run: Run, node: Any) -> Run:
    for call in calls:
        run = partial(_measured, call, node, run)
    return run


def _measured(call: _Call, node: Any, run: Run, *args: Any, **kwargs: Any) -> Any:
    tracker = call.tracker
    around = tracker.transformed
    tracker.transformed = call.made_for or around
    try:
        return tracker.call(call.site, run, args, kwargs, node)
    finally:
        tracker.transformed = around


class _CompiledRegions:
    """Tells trackers when a function made by torch.compile begins and ends."""

    def __init__(self, trackers_here: Callable[[], list[FunctionTracker]]) -> None:
        self._trackers_here = trackers_here
        self._ours: EvalFrameSetter | None = None
        # By the frame of torch.compile that runs it, which lives until its end.
        self._open: dict[int, _OpenRegion] = {}

    @property
    def is_told(self) -> bool:
        """Whether `start` was successful."""
        return self._ours is not None

    def start(self) -> None:
        """Be told from now on, if torch.compile is in use by now."""
        if self._ours is not None:
            return

        def set_eval_frame(callback: Any) -> Any:
            self._at_switch(callback)
            return original(callback)

        found = replace_eval_frame_setter(set_eval_frame)
        if found is not None:
            original, self._ours = found, set_eval_frame
            self._original = original

    def stop(self) -> None:
        """Undo `start`."""
        if self._ours is not None:
            restore_eval_frame_setter(self._ours, self._original)
            self._ours = None
            self._open.clear()

    def _at_switch(self, callback: Any) -> None:
        call = compiled_call_on_stack()
        if call is None:
            return
        if call.frame in self._open:
            region = self._open.pop(call.frame)
            show_modes(region.modes)
            for tracker, site in reversed(region.begun):
                tracker.end_region(site, call)
            return
        if call.has_returned or not callable(callback):
            return  # the end of one that began before we were there
        begun = [(t, t.begin_region(call)) for t in self._trackers_here()]
        self._open[call.frame] = _OpenRegion(
            [(t, site) for t, site in begun if site is not None], hide_modes()
        )


class _OpenRegion(NamedTuple):
    """A compiled function that is running.

    begun: who was told, and the sites of the call.
    modes: what is hidden from torch.compile meanwhile. It compiles a function anew for
        each stack of modes around it, and they would see nothing of interest.
    """

    begun: list[tuple[FunctionTracker, Site]]
    modes: list[FunctionMode]


#: The one place there is.
function_taps = FunctionTaps()
