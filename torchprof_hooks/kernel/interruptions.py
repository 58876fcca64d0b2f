"""What interrupts calls: an optimizer's step, waiting for data, communication. Its time
is its own, and the call that it interrupts goes on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns

from torchprof_hooks.kernel.open_calls import OpenCalls
from torchprof_hooks.kernel.tree import NO_MODULE, Site
from torchprof_hooks.profiles.names import Phase


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


class InterruptedCalls(OpenCalls):
    """A cursor whose calls are interrupted by what instruments notice, and by work of
    ours.

    profiler: where work of ours is booked that interrupts calls.
    """

    profiler: Site

    def interrupt(
        self, name: str, phase: Phase, *, of: object = None, is_call: bool = True
    ) -> Interruption:
        """Interrupt the current call: what the thread does from now on has a row of its
        own, and is no part of the call, until the interruption ends.

        of: what interrupts: an optimizer, or what is loaded from.
        is_call: whether this counts as a call in its row.
        """
        site = self.entry_site(name, phase, NO_MODULE if of is None else id(of))
        return Interruption(self, site if is_call else self.tree.uncounted(site))

    def end_interruption(self, of: object, ended_ns: int) -> None:
        """End the interruption by `of`, if it goes on, and what an exception has left
        open in it."""
        site = self.site
        if site.key != id(of):
            site = self.unwind_to(of)
        if site is not self.outside:
            self.close_entry(site, None, ended_ns)

    def abort(self) -> None:
        """Close the current call, which an exception has left without notice."""
        self.abort_call(self.last_stamp_ns())

    @contextmanager
    def our_work(self) -> Iterator[None]:
        """What this thread does inside is profiler overhead: it interrupts the calls
        that are open. Not if measuring ends, or begins, in there."""
        began_ns, entered_ns = perf_counter_ns(), self.entered_ns
        on_pause = self.on_pause
        yield
        if self.on_pause is on_pause:
            self.book_our_work(began_ns, perf_counter_ns(), entered_ns)

    def book_our_work(self, began_ns: int, ended_ns: int, entered_ns: int) -> None:
        """Book this time as profiler overhead, but for what has interrupted it.

        entered_ns: the cursor's when it began.
        """
        began_ns += self.entered_ns - entered_ns
        if ended_ns > began_ns:
            self.profiler.start_ns = began_ns
            self.end_entry(self.profiler, ended_ns)
