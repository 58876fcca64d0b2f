"""Shows trackers what torch-function modes do not see: custom autograd Functions, and
functions made by torch.compile."""

from __future__ import annotations

import sys
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.attach.attachments import (
    Attachment,
    Layer,
    Patch,
    attachments,
)
from torchprof_hooks.capture.attach.compiling import exempt_from_compilation
from torchprof_hooks.capture.attach.function_mode import (
    FunctionMode,
    put_back_on_stack,
)
from torchprof_hooks.capture.record.function_names import transformed_name
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.compiler import (
    compiled_call_on_stack,
    eval_frame_setter,
    is_compiler_loaded,
)
from torchprof_hooks.capture.torch_names.custom_functions import (
    Around,
    FunctionApplications,
    Run,
)
from torchprof_hooks.capture.torch_names.functions import (
    function_modes,
    remove_function_mode,
)
from torchprof_hooks.capture.torch_names.place import Function

if TYPE_CHECKING:
    from torchprof_hooks.capture.functions.function_calls import FunctionCalls
    from torchprof_hooks.capture.tracking.thread_trackers import ThreadTrackers
    from torchprof_hooks.capture.tracking.tracker import Tracker


class FunctionInterception(Attachment):
    """The one place that hears of custom Functions and of compiled functions, while it
    has users. These are trackers of all functions, and hooks on some class: this sees
    calls of custom Functions in ``apply``."""

    def __init__(self) -> None:
        super().__init__()
        #: Who follows one class of custom Functions, in any thread.
        self._of_class: weakref.WeakKeyDictionary[type, list[ThreadTrackers]] = (
            weakref.WeakKeyDictionary()
        )
        self._applications = FunctionApplications(self._around)
        self._regions = _CompiledRegions()

    def put_on(self) -> None:
        self._applications.start()

    def take_off(self) -> bool:
        self._applications.stop()
        return True

    def show_functions(self, tracker: Tracker, user: object) -> None:
        """Let `tracker` see all functions that its thread calls, until
        `hide_functions` or for as long as `user` lives."""
        functions = _functions_of(tracker)
        functions.at_unknown = self.look_for_compiler
        tracker.names_nodes = functions.follows_all
        if functions.runs_python:  # else operators tell of custom Functions, too
            attachments.attach(self, tracker)
        attachments.attach(self._regions, tracker)
        attachments.attach(functions.shown_by, user)

    def hide_functions(self, tracker: Tracker, user: object) -> None:
        """Undo `show_functions`."""
        functions = _functions_of(tracker)
        attachments.detach(functions.shown_by, user)
        tracker.names_nodes = False
        attachments.detach(self._regions, tracker)
        attachments.detach(self, tracker)

    def give_up_functions(self, tracker: Tracker) -> None:
        """Undo `show_functions` from a finalizer of the user (see
        `Attachments.give_up`)."""
        attachments.give_up(self._regions, tracker)
        attachments.give_up(self, tracker)

    def add_to_class(self, cls: type, threads: ThreadTrackers, user: object) -> None:
        """Tell the trackers in `threads` of calls of `cls`, until `remove_from_class`,
        or for as long as `cls` and `user` live."""
        self._of_class.setdefault(cls, []).append(threads)
        attachments.attach(self, user)

    def remove_from_class(
        self, cls: type, threads: ThreadTrackers, user: object
    ) -> None:
        """Undo `add_to_class`."""
        attachments.detach(self, user)
        followers = self._of_class.get(cls, [])
        if threads in followers:
            followers.remove(threads)

    def look_for_compiler(self) -> None:
        """Watch compiled functions if torch.compile has come into use only now."""
        if not self._regions.is_on and is_compiler_loaded():
            exempt_from_compilation()
            attachments.renew(self._regions)

    def trackers_here(self) -> list[Tracker]:
        """The trackers that see all functions, and that this thread works for."""
        return self._regions.trackers_here()

    def _told_here(self) -> list[Tracker]:
        """Those of these that do not hear of custom Functions as operators."""
        return [t for t in self.trackers_here() if _functions_of(t).runs_python]

    def _around(self, cls: Any) -> Around | None:
        """What measures an application of `cls`, as far as anybody wants to know."""
        if is_dynamo_compiling():
            return None
        of_class = [threads.here() for threads in self._of_class.get(cls, ())]
        calls = [
            _Call(tracker, site, transformed_name(cls))
            for tracker in of_class + self._told_here()
            if (functions := _functions_of(tracker)).transformed != cls.__name__
            and (site := functions.find(tracker, cls)) is not None
        ]
        return partial(_around, calls) if calls else None


class _Call(NamedTuple):
    """An application of a custom Function as one tracker sees it.

    made_for: name of the Function that ``torch.func`` made the class for, if any.
    """

    tracker: Tracker
    site: Site
    made_for: str | None


def _around(calls: list[_Call], run: Run) -> Run:
    for call in calls:
        run = partial(_measured, call, run)
    return run


def _measured(call: _Call, run: Run, *args: Any, **kwargs: Any) -> Any:
    tracker = call.tracker
    functions = _functions_of(tracker)
    around = functions.transformed
    functions.transformed = call.made_for or around
    try:
        return functions.call(tracker, call.site, run, args, kwargs)
    finally:
        functions.transformed = around


def _functions_of(tracker: Tracker) -> FunctionCalls:
    assert tracker.functions is not None  # else it is shown no functions
    return tracker.functions


class _CompiledRegions(Patch):
    """Tells trackers when a function made by torch.compile begins and ends; its users
    are those of all functions."""

    def __init__(self) -> None:
        super().__init__(eval_frame_setter, self._make_setter)
        # By the id of the frame of torch.compile's that runs the region, and lives as
        # long as that.
        self._open: dict[int, _OpenRegion] = {}

    def _make_setter(self, original: Function, layer: Layer) -> Function:
        def set_eval_frame(callback: Any) -> Any:
            if layer.is_on:
                self._at_switch(callback)
            return original(callback)

        return set_eval_frame

    def take_off(self) -> bool:
        super().take_off()
        self._open.clear()
        return True

    def _at_switch(self, callback: Any) -> None:
        call = compiled_call_on_stack()
        if call is None:
            return
        if call.frame in self._open:
            region = self._open.pop(call.frame)
            put_back_on_stack(region.modes)
            call = call.at_end(region.handled)
            for tracker, site in reversed(region.begun):
                _functions_of(tracker).end_region(tracker, site, call)
            return
        if call.has_returned or not callable(callback):
            return  # the end of a region that began before we watched
        begun = [
            (tracker, _functions_of(tracker).begin_region(tracker, call))
            for tracker in self.trackers_here()
        ]
        told = [(t, site) for t, site in begun if site is not None]
        modes = [mode for mode in function_modes() if isinstance(mode, FunctionMode)]
        self._open[call.frame] = _OpenRegion(told, modes, sys.exc_info()[1])
        for mode in modes:
            remove_function_mode(mode)


class _OpenRegion(NamedTuple):
    """A compiled function that is running.

    begun: the trackers that were told, and the sites of the call.
    modes: those of ours, which are hidden meanwhile: torch.compile compiles a function
        anew for each stack of modes around it, and they would see nothing of interest.
    handled: the exception that was being handled when it began.
    """

    begun: list[tuple[Tracker, Site]]
    modes: list[FunctionMode]
    handled: BaseException | None


#: The one place there is.
function_interception = FunctionInterception()
