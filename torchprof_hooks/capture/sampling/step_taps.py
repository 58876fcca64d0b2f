"""What shows some of a program's steps to a tracker."""

from __future__ import annotations

from collections.abc import Callable

from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.loaders import loader_patches
from torchprof_hooks.capture.attach.module_hooks import CursorHooks
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.tracking.tap import Tap, hide_modules, show_modules
from torchprof_hooks.capture.tracking.tracker import Tracker


class StepTaps:
    """Shows a program's steps to one tracker at a time, or to none.

    on_pause: told of the end of whatever was called from outside of all.
    on_many: told of calls, some thousand at a time, where functions are seen.
    hides_functions: whether functions are not shown any more, although the tracker
        follows them.
    """

    def __init__(
        self,
        on_pause: Callable[[Site, int], object],
        on_many: Callable[[object], None],
    ) -> None:
        self._on_pause = on_pause
        self._on_many = on_many
        self.hides_functions = False
        self._tracker: Tracker | None = None
        self._tap: Tap | None = None
        self._hooks = CursorHooks()

    def start(self) -> None:
        """From now on, trackers can be shown modules."""
        show_modules(self._hooks, self)

    def stop(self) -> None:
        """After `close`: trackers cannot be shown modules any more."""
        hide_modules(self._hooks, self)

    def open(self, tracker: Tracker, sees_inside: bool) -> None:
        """Show `tracker` the steps that come: all modules, or those that are called
        from outside; and backward passes, data loading and the like."""
        self._follow(tracker)
        self._tap = Tap(tracker, modules=sees_inside, optimizers=False)
        self._tap.open()
        if tracker.functions is not None:
            tracker.log.on_fold = self._on_many
        if not sees_inside:
            self._hooks.follow(tracker)

    def hide_functions(self) -> None:
        """Show no functions until the next `open`, but all else."""
        self.hides_functions = True
        if self._tap is not None:
            self._tap.hide_functions()

    def watch(self, tracker: Tracker) -> None:
        """Show `tracker` the calls of modules from outside, and data loading, which may
        call modules, too; and nothing else."""
        self._follow(tracker)
        for patch in loader_patches:
            attachments.attach(patch, tracker)
        self._hooks.follow(tracker)

    def close(self, by_exception: bool = False) -> None:
        """Show nothing any more. The tracker is forgotten last, so that an interrupted
        call can be repeated."""
        tracker, tap = self._tracker, self._tap
        self.hides_functions = False
        self._hooks.follow(None)
        if tracker is not None:
            tracker.on_pause = tracker.log.on_fold = None
            if tap is not None:
                tap.close(by_exception)
            else:
                tracker.abort_all(by_exception)
                for patch in loader_patches:
                    attachments.detach(patch, tracker)
        self._tap = None
        self._tracker = None

    def _follow(self, tracker: Tracker) -> None:
        self._tracker = tracker
        tracker.on_pause = self._on_pause
