"""Calls that do not simply begin and end: an exception goes through them, or something
interrupts them, such as an optimizer's step, waiting for data, or communication. The
time of an interruption is its own, and the interrupted call goes on afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns

from torchprof_hooks.kernel.callbacks import CallListener
from torchprof_hooks.kernel.own_sums import SummedCalls
from torchprof_hooks.kernel.torch_names.autograd import next_sequence_number
from torchprof_hooks.kernel.torch_names.checkpoints_and_loaders import (
    STOPS_RECOMPUTATION,
)
from torchprof_hooks.kernel.torch_names.modules import (
    error_of_call,
    modules_on_stack,
)
from torchprof_hooks.kernel.tree import NO_MODULE, CallTree, Site
from torchprof_hooks.profiles.names import Phase


class OpenCalls(SummedCalls):
    """A cursor that closes calls which did not end in order.

    What is promised about an interrupt, whenever it comes: after the next use, nothing
    is left on torch; no exception of ours reaches the program; numbers of that step may
    be off.

    tree: the sites.
    aborted_calls: how many calls an exception went through.
    undivided_passes: how many passes were not divided among their owners, because nodes
        of several threads had the same number.
    callbacks: notified of these.
    """

    site: Site
    outside: Site
    garbage: Site | None
    tree: CallTree
    callbacks: CallListener | None
    aborted_calls: int
    undivided_passes: int
    pass_owner: Site | None

    def interruption_site(self, name: str, phase: Phase, key: int = NO_MODULE) -> Site:
        """The site of something that is not a module, called from the current site."""
        return self.tree.interruption_site(self.site, name, phase, key)

    def open_sites(self) -> Iterator[Site]:
        """The current site and those around it, innermost first, without `outside`."""
        site = self.site
        while site is not self.outside:
            yield site
            site = site.caller

    def is_open(self, called: object) -> bool:
        """Whether a call of this module is open, or a step of this optimizer."""
        return any(site.key == id(called) for site in self.open_sites())

    def unwind_to(self, called: object) -> Site:
        """Return to the call of a module, or of an optimizer: close the calls inside it
        that an exception has left without notice. `outside` if that call is not
        open: it began before the thread was followed, or while data was loaded."""
        if self.site.is_loading or not self.is_open(called):
            return self.outside
        last_ns = self.last_stamp_ns()
        while self.site.key != id(called):
            self.abort_call(last_ns)
        return self.site

    def close_left_calls(self) -> None:
        """Close calls that are not on the stack any more, where a hook notifies us of a
        call of a module: none does when an interrupt leaves a call."""
        calls: list[Site] = []
        for site in self.open_sites():
            if site.phase == "backward":  # maybe in another thread than what is around
                break
            if site.key != NO_MODULE and site.is_called:
                calls.append(site)
        # The call that begins is on the stack already.
        alive = map(id, modules_on_stack()[:-1])
        for site in reversed(calls):
            if site.key not in alive:  # the search goes on behind the last one found
                self.abort_down_to(site.caller, self.last_stamp_ns())
                return

    def returns_to(self, site: Site, end_ns: int) -> bool:
        """Close what was left open inside of `site`; False if `site` is not open any
        more itself: measuring was stopped inside of it."""
        if self.site is not site:
            if all(open_site is not site for open_site in self.open_sites()):
                return False
            self.abort_down_to(site, end_ns)
        return True

    def leave_failed(self, site: Site, end_ns: int) -> None:
        """An exception has left the call at `site`: close it, if it is still open."""
        if self.returns_to(site, end_ns):
            self.abort_down_to(site.caller, end_ns)

    def leave_interruption(self, site: Site, outputs: object = None) -> None:
        """What was begun at `site` is done: end it, if it is still open."""
        if self.returns_to(site, perf_counter_ns()):
            self.close_entry(site, outputs)

    def abort_call(self, end_ns: int) -> None:
        """Close the current call, which an exception went through."""
        site = self.site
        site.cut += 1
        self.aborted_calls += 1
        if self.callbacks is not None:
            self.callbacks.aborted(site)
        self.site = site.caller
        self.own_until(site, next_sequence_number())
        end_ns = max(end_ns, site.start_ns)
        if site.is_entry:
            self.end_entry(site, end_ns)
        else:
            self.book((site.code, site.start_ns, end_ns))

    def abort_down_to(self, site: Site, end_ns: int) -> None:
        """Close calls inside `site` that an exception left open."""
        while self.site is not site and self.site is not self.outside:
            self.abort_call(end_ns)

    def count_if_aborted(self) -> None:
        """After a forward without outputs: count it as aborted if it has raised."""
        error = error_of_call()
        if error is not None and type(error).__name__ != STOPS_RECOMPUTATION:
            self.aborted_calls += 1

    def last_stamp_ns(self) -> int:
        """The latest moment at which the current call is known to have been running.
        Time after that is booked on nobody, as its owner could only be guessed."""
        return max(self.site.start_ns, self.last_booked_ns())


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
        self._calls.leave_interruption(self.site, result)
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
        """Interrupt the current call (see `Reading`)."""
        site = self.interruption_site(name, phase, NO_MODULE if of is None else id(of))
        return Interruption(self, site if is_call else self.tree.uncounted(site))

    def end_interruption(self, of: object, ended_ns: int) -> None:
        """End the interruption by `of` (see `Reading`)."""
        site = self.site
        if site.key != id(of):
            site = self.unwind_to(of)
        if site is not self.outside:
            self.close_entry(site, None, ended_ns)

    def abort(self) -> None:
        """Close the current call, which an exception has left without notice."""
        self.abort_call(self.last_stamp_ns())

    def move(self, left: Site | None, entered: Site | None) -> None:
        """End a part of the current call, and begin another one (see `Reading`)."""
        now_ns = perf_counter_ns()
        if left is not None:
            self.site = left.caller
            self.end_entry(left, now_ns)
        if entered is not None:
            entered.low, entered.start_ns = next_sequence_number(), now_ns
            self.site = entered
        if self.memory is not None or self.device is not None:
            closed = [left] if left is not None else []
            self.owners_moved(closed, [entered] if entered is not None else [])

    def end_parts(self, parts: Sequence[Site], call: Site) -> None:
        """End what is open inside of `call`, and count each of `parts` as called."""
        if self.site is not call:
            if call is not self.outside and call not in self.open_sites():
                return  # measuring has ended meanwhile
            self.abort_down_to(call, perf_counter_ns())
        now_ns = perf_counter_ns()
        for part in parts if self.gives_time_back else ():  # not in a trace
            self.book((part.code, now_ns, now_ns))
        self.fold_if_due()

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
