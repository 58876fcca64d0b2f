"""The hooks by which a tracker is shown some of a program's steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator

import torch

from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.engine import engine_patch
from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.sampling.root_taps import RootEnds, RootTaps
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.tap import Tap

Roots = Iterable[weakref.ref[torch.nn.Module]]


class StepTaps:
    """What is open for one tracker at a time: a tap, hooks on outermost modules, both,
    or neither.

    on_pause: told of the end of whatever was called from outside of all.
    """

    def __init__(self, on_pause: Callable[[Site, int], object]) -> None:
        self._on_pause = on_pause
        self._tracker: BackwardTracker | None = None
        self._tap: Tap | None = None
        self._root_taps: RootTaps | None = None
        self._root_ends: RootEnds | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a tracker that is shown something."""
        return self._tracker is not None

    @property
    def has_root_taps(self) -> bool:
        """Whether there are hooks on outermost modules."""
        return self._root_taps is not None

    def open(
        self,
        tracker: BackwardTracker,
        make_tap: Callable[[], Tap] | None,
        roots: Roots | None,
    ) -> None:
        """Show `tracker` the steps that come.

        make_tap: makes its tap, if it is to have one; else it is shown backward passes,
            which end steps.
        roots: the modules to put hooks on, as far as they live; None for no such hooks.
        """
        self._tracker = tracker
        tracker.on_pause = self._on_pause
        if make_tap is not None:
            self._tap = make_tap()
            self._tap.open()
        elif roots is not None:
            attachments.attach(engine_patch, tracker)
        if roots is not None:
            self._root_taps = RootTaps(tracker, list(_living(roots)))

    def watch(self, roots: Roots, at_end: Callable[[], object]) -> None:
        """Besides, call `at_end` whenever one of `roots` has been called; their calls
        are not measured."""
        self._root_ends = RootEnds(at_end)
        self._root_ends.open(_living(roots))

    def close(self, by_exception: bool = False) -> None:
        """Show nothing any more."""
        if self._tracker is not None:
            self._tracker.on_pause = None
            attachments.detach(engine_patch, self._tracker)
            self._tracker = None
        if self._root_ends is not None:
            self._root_ends.close()
            self._root_ends = None
        if self._root_taps is not None:
            self._root_taps.close()
            self._root_taps = None
        if self._tap is not None:
            self._tap.close(by_exception)
            self._tap = None


def _living(roots: Roots) -> Iterator[torch.nn.Module]:
    return (module for root in roots if (module := root()) is not None)
