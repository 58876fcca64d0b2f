"""The base class of hooks on modules, with Chainer's contract."""

from __future__ import annotations

from torchprof_hooks.capture.tracking.callbacks import LinkCall
from torchprof_hooks.capture.tracking.make_tracker import is_default, make_tracker
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.hooks.hook import Hook, on_modules


class LinkHook(Hook):
    """Callbacks around every call of a module (which Chainer calls a link).

    Subclass it and override what you need. ``with hook:`` activates it for all modules
    that this thread calls, `add_hook` for one module in all threads. Hooks are known by
    `name`: two of one name cannot be active at once in the same place, and a hook on a
    module takes the place of a thread-wide one of its name.

    Nested modules nest: pre of the outer, pre of the inner, post of the inner, post of
    the outer. A call that raises has no post. In a backward pass, a module's callbacks
    come before and after the work that belongs to the nodes its forward made; whichever
    hooks are active when the pass starts and were active in the forward are called.

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

    def _make_tracker(self, everywhere: bool) -> Tracker:
        return make_tracker(self, everywhere, backward=False)
