"""The base class of hooks on modules, with Chainer's contract."""

from __future__ import annotations

from torchprof_hooks.hooks.hook import Hook, on_modules
from torchprof_hooks.kernel.callbacks import LinkCall
from torchprof_hooks.kernel.make_tracker import is_default, make_tracker
from torchprof_hooks.kernel.subscriptions import (
    ThreadTrackers,
    TrackerSubscription,
)
from torchprof_hooks.kernel.tracker import Tracker


class LinkHook(Hook):
    """Callbacks around every call of a module (which Chainer calls a link).

    Subclass it and override what you need. ``with hook:`` activates the hook for all
    modules that this thread calls, `add_hook` for one module in all threads. Hooks are
    identified by `name`: in one thread, or on one module, no two active hooks can have
    the same name. A hook on a module replaces a thread-wide one of its name there.

    Callbacks nest like the calls: preprocess of the outer module, preprocess of the
    inner one, postprocess of the inner one, postprocess of the outer one. A call that
    raises has no postprocess callback. In a backward pass, the callbacks of a module
    come before and after the work of the autograd nodes that its forward made, for
    hooks that were active in that forward and are active when the pass starts.

    The semantics are those of ``chainer.LinkHook`` 7.8; the backward callbacks are new.

    Example:
        >>> class Printer(LinkHook):
        ...     name = "Printer"
        ...     def forward_preprocess(self, args):
        ...         print("forward", args.path)
        ...     def backward_preprocess(self, args):
        ...         print("backward", args.path)
        >>> with Printer():
        ...     model(x).sum().backward()
        forward Sequential
        forward Sequential.0
        backward Sequential
        backward Sequential.0
    """

    name = "LinkHook"
    _thread_wide = on_modules

    @is_default
    def forward_preprocess(self, args: LinkCall) -> None:
        """Called before the forward of a module."""

    @is_default
    def forward_postprocess(self, args: LinkCall) -> None:
        """Called after the forward of a module."""

    @is_default
    def backward_preprocess(self, args: LinkCall) -> None:
        """Called before the backward work of one call of a module."""

    @is_default
    def backward_postprocess(self, args: LinkCall) -> None:
        """Called after the backward work of one call of a module."""

    def _new_subscription(self) -> TrackerSubscription:
        return TrackerSubscription(self._make_tracker(everywhere=True))

    def _make_tracker(self, everywhere: bool) -> Tracker:
        """A tracker that serves this hook in the running thread.

        everywhere: whether it serves the whole thread, not only the hook's targets.
        """
        return make_tracker(self, everywhere, backward=False)

    @property
    def _target_threads(self) -> ThreadTrackers:
        """The trackers that serve this hook on all of its targets."""
        if self._threads is None:
            self._threads = self._new_target_threads()
        return self._threads

    def _new_target_threads(self) -> ThreadTrackers:
        return ThreadTrackers(lambda: self._make_tracker(everywhere=False))

    _threads: ThreadTrackers | None = None
