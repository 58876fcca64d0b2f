"""Calls a user's hook at every module call, and describes that call to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from torchprof_hooks.kernel.torch_names.modules import caller_kwargs, error_of_call
from torchprof_hooks.kernel.tree import Site


class LinkCall:
    """One call of a module, as Chainer's callback arguments name its parts.

    link, module: the module that is called (two names for it).
    path: its qualified name from the root, ``CharLM.blocks.0.attn``.
    forward_name: "forward".
    args, kwargs: what it was called with; in backward callbacks empty, since nothing is
        kept alive for them.
    out: what it returned; None before it did, and in backward callbacks.
    """

    __slots__ = ("args", "forward_name", "kwargs", "link", "out", "path")

    def __init__(
        self,
        link: torch.nn.Module,
        path: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.link = link
        self.path = path
        self.forward_name = "forward"
        self.args = args
        self.kwargs = {} if kwargs is None else kwargs
        self.out: Any = None

    @property
    def module(self) -> torch.nn.Module:
        """The same as `link`."""
        return self.link

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(path={self.path!r}, link={type(self.link).__name__}"
            f", forward_name={self.forward_name!r}, {len(self.args)} args"
            f", kwargs={sorted(self.kwargs)})"
        )


class Callbacks(Protocol):
    """The part of `LinkHook` that is called for each module call."""

    name: str

    def forward_preprocess(self, args: LinkCall) -> None: ...
    def forward_postprocess(self, args: LinkCall) -> None: ...
    def backward_preprocess(self, args: LinkCall) -> None: ...
    def backward_postprocess(self, args: LinkCall) -> None: ...


class CallListener:
    """Is notified of calls of modules, and of blocks that count as calls."""

    def called(self, site: Site, args: Any) -> None:
        """A call has begun. What is done here is time of the call."""

    def returned(self, site: Site, outputs: Any) -> None:
        """It is over, and booked: what is done here is time of the caller. The step
        that an outermost call ends, if it does, is over, too.

        outputs: None also if the call has raised (`error_of_call`), and of a block.
        """

    def aborted(self, site: Site) -> None:
        """An interrupt has ended it: `returned` does not follow."""

    def forget(self, module: torch.nn.Module) -> None:
        """A hook was taken off `module`: nobody is to know of its open calls."""


class Listeners(CallListener):
    """Several of them, in their order.

    every: these.
    """

    def __init__(self, every: tuple[CallListener, ...]) -> None:
        self.every = every

    def called(self, site: Site, args: Any) -> None:
        for listener in self.every:
            listener.called(site, args)

    def returned(self, site: Site, outputs: Any) -> None:
        for listener in self.every:
            listener.returned(site, outputs)

    def aborted(self, site: Site) -> None:
        for listener in self.every:
            listener.aborted(site)

    def forget(self, module: torch.nn.Module) -> None:
        for listener in self.every:
            listener.forget(module)


class LinkCallbacks(CallListener):
    """Calls the callbacks of a hook where a cursor notifies of a call (see `Cursor`),
    and where a backward pass moves to other owners (see `MoveListener`)."""

    def __init__(self, hook: Callbacks) -> None:
        self._hook = hook
        self._open_calls: dict[int, LinkCall] = {}  # by code of the site
        self._open_backwards: dict[int, Site] = {}  # likewise

    def called(self, site: Site, args: Any) -> None:
        """A call has begun."""
        module = site.living_module()
        assert module is not None
        call = LinkCall(module, site.name, args, caller_kwargs())
        self._open_calls[site.code] = call
        self._hook.forward_preprocess(call)

    def returned(self, site: Site, outputs: Any) -> None:
        """A call has ended: notify the hook, unless an exception ended it."""
        call = self._open_calls.pop(site.code, None)
        if call is not None and (outputs is not None or error_of_call() is None):
            call.out = outputs
            self._hook.forward_postprocess(call)

    def aborted(self, site: Site) -> None:
        """An exception went through a call."""
        self._open_calls.pop(site.code, None)

    def moved(self, closed: list[Site], opened: list[Site], failed: bool) -> None:
        """A pass has moved to other owners."""
        for site in closed:
            is_open = self._open_backwards.pop(site.code, None) is not None
            if is_open and not failed:
                _notify(self._hook.backward_postprocess, site)
        for site in opened:
            self._open_backwards[site.code] = site
            _notify(self._hook.backward_preprocess, site)

    def forget(self, module: torch.nn.Module) -> None:
        """The hook was taken off `module`: nobody is notified of the ends of its open
        calls."""
        for code, call in [*self._open_calls.items()]:
            if call.link is module:
                del self._open_calls[code]
        for code, site in [*self._open_backwards.items()]:
            if site.living_module() is module:
                del self._open_backwards[code]


def _notify(callback: Callable[[LinkCall], None], site: Site) -> None:
    module = site.living_module()
    if module is not None:
        callback(LinkCall(module, site.name))
