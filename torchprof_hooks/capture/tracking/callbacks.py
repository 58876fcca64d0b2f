"""Calls a user's hook at every module call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.modules import caller_kwargs
from torchprof_hooks.capture.tracking.link_call import LinkCall


class Callbacks(Protocol):
    """The part of `LinkHook` that is called for each module call."""

    name: str

    def forward_preprocess(self, args: LinkCall) -> None: ...
    def forward_postprocess(self, args: LinkCall) -> None: ...
    def backward_preprocess(self, args: LinkCall) -> None: ...
    def backward_postprocess(self, args: LinkCall) -> None: ...


class LinkCallbacks:
    """Calls the callbacks of a hook, as a cursor tells (see `Cursor.callbacks`), and
    passes do (see `MoveListener`)."""

    def __init__(self, hook: Callbacks) -> None:
        self._hook = hook
        self._open_calls: dict[int, LinkCall] = {}  # by code of the site

    def called(self, site: Site, args: Any) -> None:
        """A call has begun."""
        module = site.living_module()
        assert module is not None
        call = LinkCall(module, site.name, args, caller_kwargs())
        self._open_calls[site.code] = call
        self._hook.forward_preprocess(call)

    def returned(self, site: Site, outputs: Any) -> None:
        """A call has ended: tell the hook, unless an exception ended it."""
        call = self._open_calls.pop(site.code, None)
        if call is not None and (outputs is not None or sys.exc_info()[0] is None):
            call.out = outputs
            self._hook.forward_postprocess(call)

    def aborted(self, site: Site) -> None:
        """An exception went through a call."""
        self._open_calls.pop(site.code, None)

    def moved(self, closed: list[Site], opened: list[Site], failed: bool) -> None:
        """A pass has gone over to other owners."""
        for site in closed:
            if not failed:
                _tell(self._hook.backward_postprocess, site)
        for site in opened:
            _tell(self._hook.backward_preprocess, site)


def _tell(callback: Callable[[LinkCall], None], site: Site) -> None:
    module = site.living_module()
    if module is not None:
        callback(LinkCall(module, site.name))
