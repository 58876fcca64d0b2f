"""A tracker that reads a device's clock next to the host's."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.backward_pass import BackwardPass
from torchprof_hooks.capture.backward_plan import Move
from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.module_names import ModuleNames
from torchprof_hooks.capture.site import Site
from torchprof_hooks.measure.device_clock import DeviceClock

#: Number of waiting spans at which those that the device has finished are booked.
RESOLVE_AT: Final = 1024


class DeviceTracker(BackwardTracker):
    """Stamps the device's queue wherever the host's clock is read.

    A span waits, with its two stamps, until the device says that it has come past them:
    the loop never waits for the device. Spans without stamps (see `DeviceClock.stamp`)
    count on the host only.
    """

    def __init__(self, clock: DeviceClock, names: ModuleNames | None = None) -> None:
        super().__init__(names)
        self.clock = clock
        self.device_ns: dict[int, int] = {}  # by code of the site
        self._waiting: deque[tuple[int, Any, Any]] = deque()

    def forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """Open the call of `module`."""
        if is_dynamo_compiling() or not self.works_here():
            return
        super().forward_pre(module, args)
        if self.site.key == id(module):
            self.site.device_start = self.clock.stamp()

    def forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """Close the call of `module`."""
        if is_dynamo_compiling() or not self.works_here():
            return
        site = self.site
        super().forward_post(module, args, outputs)
        if site.key == id(module):
            self._close(site, self.clock.stamp())
            self.resolve_if_many()

    def open_entry(self, site: Site) -> None:
        """Begin an entry (see the parent class)."""
        super().open_entry(site)
        site.device_start = self.clock.stamp()

    def close_entry(self, site: Site, outputs: object = None) -> None:
        """End the current entry (see the parent class)."""
        super().close_entry(site, outputs)
        self._close(site, self.clock.stamp())

    def _make_move(self, move: Move, running: BackwardPass, now_ns: int) -> None:
        super()._make_move(move, running, now_ns)
        stamp = self.clock.stamp()
        for site in move.closes:
            self._close(site, stamp)
        for site in move.opens:
            site.device_start = stamp
        self.resolve_if_many()

    def _close(self, site: Site, stamp: Any) -> None:
        start, site.device_start = site.device_start, None
        if start is not None and stamp is not None:
            self._waiting.append((site.code, start, stamp))

    def resolve_if_many(self) -> None:
        """Book what the device has finished, once enough is waiting."""
        if len(self._waiting) > RESOLVE_AT:
            while self._waiting and self.clock.is_done(self._waiting[0][2]):
                self._book(*self._waiting.popleft())

    def resolve_all(self) -> None:
        """Wait for the device and book everything. For reading, not for the loop."""
        while self._waiting:
            code, start, end = self._waiting.popleft()
            self.clock.wait(end)
            self._book(code, start, end)

    def _book(self, code: int, start: Any, end: Any) -> None:
        elapsed_ns = self.clock.elapsed_ns(start, end)
        self.device_ns[code] = self.device_ns.get(code, 0) + elapsed_ns
