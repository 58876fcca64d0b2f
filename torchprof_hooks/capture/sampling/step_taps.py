"""The hooks by which a tracker is shown some of a program's steps."""

from __future__ import annotations

from collections.abc import Callable

from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.export_shield import script_patch
from torchprof_hooks.capture.core import hooks_of
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.sampling.root_hooks import RootHooks, Roots
from torchprof_hooks.capture.tracking.tap import Tap
from torchprof_hooks.capture.tracking.tracker import Tracker


class StepTaps:
    """What is open for one tracker at a time: a tap, hooks on outermost modules, both,
    or neither.

    on_pause: told of the end of whatever was called from outside of all.
    """

    def __init__(self, on_pause: Callable[[Site, int], object]) -> None:
        self._on_pause = on_pause
        self._tracker: Tracker | None = None
        self._tap: Tap | None = None
        self._root_hooks: RootHooks | None = None

    def open(self, tracker: Tracker, roots: Roots | None = None) -> None:
        """Show `tracker` the steps that come: all modules, or these alone; and backward
        passes, data loading and the like."""
        self._tracker = tracker
        tracker.on_pause = self._on_pause
        self._tap = Tap(tracker, modules=roots is None, optimizers=False)
        self._tap.open()
        if roots is not None:
            self._attach(RootHooks(roots, *hooks_of(tracker)))

    def watch(self, tracker: Tracker, roots: Roots) -> None:
        """Show `tracker` the calls of these modules, and nothing else."""
        self._tracker = tracker
        tracker.on_pause = self._on_pause
        self._attach(RootHooks(roots, *hooks_of(tracker)))

    def close(self, by_exception: bool = False) -> None:
        """Show nothing any more."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.on_pause = None
        if self._root_hooks is not None:
            attachments.detach(self._root_hooks, self)
            attachments.detach(script_patch, self._root_hooks)
            self._root_hooks = None
        if self._tap is not None:
            self._tap.close(by_exception)
            self._tap = None
        elif tracker is not None:
            tracker.abort_all(by_exception)

    def _attach(self, hooks: RootHooks) -> None:
        self._root_hooks = hooks
        attachments.attach(script_patch, hooks)
        attachments.attach(hooks, self)
