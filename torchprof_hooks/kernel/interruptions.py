"""What interrupts calls: an optimizer's step, waiting for data, communication. Its time
is its own, and the call that it interrupts goes on afterwards."""

from __future__ import annotations

from time import perf_counter_ns

from torchprof_hooks.kernel.open_calls import OpenCalls
from torchprof_hooks.kernel.tree import Site


class Interruption:
    """An interruption, from when it is made until one of its methods is called. They do
    nothing if measuring has ended meanwhile.

    site: where it is booked.
    """

    __slots__ = ("_calls", "site")

    def __init__(self, calls: OpenCalls, site: Site) -> None:
        self._calls = calls
        self.site = site
        calls.open_entry(site)

    def end(self, result: object = None) -> None:
        """It is over."""
        self._calls.leave_entry(self.site, result)
        self._calls.fold_if_due()

    def fail(self) -> None:
        """An exception has ended it."""
        self._calls.leave_failed(self.site, perf_counter_ns())

    def end_uncounted(self) -> None:
        """It is over, and does not count as a call: there was nothing to do."""
        calls = self._calls
        if calls.returns_to(self.site, perf_counter_ns()):
            calls.site = calls.tree.uncounted(self.site)
            calls.close_entry(calls.site)

    def end_at(self, began_ns: int, ended_ns: int) -> None:
        """It has gone on between these moments, and is noticed only now."""
        self.site.start_ns = began_ns
        self._calls.close_entry(self.site, None, ended_ns)
