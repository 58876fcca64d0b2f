"""Tells trackers when a checkpoint computes something again."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from torchprof_hooks.capture.attach.patch import Layer, Patch
from torchprof_hooks.capture.torch_names.checkpoints import (
    beginning_of_recomputation,
    end_of_recomputation,
)
from torchprof_hooks.capture.torch_names.compiler import is_tracing
from torchprof_hooks.capture.torch_names.place import Function

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker


class RecomputationPatch(Patch):
    """Where torch's non-reentrant checkpoint begins, or ends, to compute again what a
    node asks for; its users are trackers.

    What is called in between is seen in other ways. But what torch does around that
    (random states, autocast, checks) would be the time of the node that asked.
    """

    def _trackers_here(self) -> list[Tracker]:
        living = (reference() for reference in self._users)
        return [t for t in living if t is not None and t.works_here()]


class _Beginning(RecomputationPatch):
    def __init__(self) -> None:
        super().__init__(beginning_of_recomputation, self._make_beginning)

    def _make_beginning(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def begin_recomputation(*args: Any, **kwargs: Any) -> Any:
            if layer.is_on and not is_tracing():
                for tracker in self._trackers_here():
                    tracker.begin_recomputation()
            return original(*args, **kwargs)

        return begin_recomputation


class _End(RecomputationPatch):
    def __init__(self) -> None:
        super().__init__(end_of_recomputation, self._make_end)

    def _make_end(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def end_recomputation(*args: Any, **kwargs: Any) -> Any:
            checked = original(*args, **kwargs)
            if layer.is_on and not is_tracing():
                for tracker in self._trackers_here():
                    tracker.end_recomputation()
            return checked

        return end_recomputation


#: All there are.
recomputation_patches: Final = (_Beginning(), _End())
