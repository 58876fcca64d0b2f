"""Trackers that call a user's hook at every module call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.backward.planned import PlannedPasses
from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.link_call import LinkCall
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.torch_names.modules import (
    caller_kwargs,
)
from torchprof_hooks.capture.tracker import Tracker


class Callbacks(Protocol):
    """The part of `LinkHook` that is called for each module call."""

    name: str

    def forward_preprocess(self, args: LinkCall) -> None: ...
    def forward_postprocess(self, args: LinkCall) -> None: ...
    def backward_preprocess(self, args: LinkCall) -> None: ...
    def backward_postprocess(self, args: LinkCall) -> None: ...


class CallbackTracker(Tracker):
    """Calls the forward callbacks of a hook."""

    follows_loading = True  # whoever asks to be told is told

    def __init__(self, hook: Callbacks, **options: Any) -> None:
        super().__init__(**options)
        self._hook = hook
        self._open_calls: dict[int, LinkCall] = {}  # by code of the site

    def forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """Open the call of `module` and tell the hook."""
        if not is_dynamo_compiling():
            self.module_pre(module, args, None)

    def module_pre(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """The same, with the keywords if they are known."""
        if not self.works_here():
            return
        super().forward_pre(module, args)
        if self.site.key == id(module):
            kwargs = caller_kwargs() if kwargs is None else dict(kwargs)
            call = LinkCall(module, self.site.name, args, kwargs)
            self._open_calls[self.site.code] = call
            self._hook.forward_preprocess(call)

    def forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """Close the call of `module`; tell the hook, unless an exception ended it."""
        if is_dynamo_compiling() or not self.works_here():
            return
        site = next((s for s in self.open_sites() if s.key == id(module)), None)
        super().forward_post(module, args, outputs)
        call = self._open_calls.pop(site.code, None) if site else None
        if call is not None and (outputs is not None or sys.exc_info()[0] is None):
            call.out = outputs
            self._hook.forward_postprocess(call)

    def abort_call(self, end_ns: int) -> None:
        """Close the current call, which an exception went through."""
        self._open_calls.pop(self.site.code, None)
        super().abort_call(end_ns)


class BackwardCallbackTracker(CallbackTracker, BackwardTracker):
    """Calls all callbacks of a hook."""

    calls_back = True

    def __init__(self, hook: Callbacks, **options: Any) -> None:
        # What a callback raises ends the pass, which only hooks on nodes can do.
        super().__init__(hook, backward=PlannedPasses(), **options)
        self.tells_moves = True

    def moved(self, closed: list[Site], opened: list[Site]) -> None:
        """A pass has gone over to other owners (see the parent class)."""
        for site in closed:
            if not self.passes[-1].failed:
                self._tell(self._hook.backward_postprocess, site)
        for site in opened:
            self._tell(self._hook.backward_preprocess, site)

    def _tell(self, callback: Callable[[LinkCall], None], site: Site) -> None:
        module = site.living_module()
        if module is not None:
            callback(LinkCall(module, site.name))
