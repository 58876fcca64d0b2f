"""What interrupts calls without being a part of them: waiting for data, communication
with other processes, and what torch.compile does."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from torchprof_hooks.capture.record.exchanges import Exchange
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.profiles.names import (
    COMPILING_NAME,
    DATA_NAME,
    communication_name,
)

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker

#: Phases of entries inside of which communication is not told apart.
_WHOLE_PHASES: Final = ("data", "waiting", "communication")

# Data


def begin_loading(tracker: Tracker, source: object, gives_batch: bool) -> Site | None:
    """Begin to wait for `source`, an iterator over batches, or a loader that makes one.
    None if that is a part of other loading: a data set may load from another."""
    tracker.drop_dead_calls(source)
    if tracker.site.phase == "data":
        return None
    site = tracker.entry_site(DATA_NAME, "data", id(source))
    if not gives_batch:
        site = tracker.tree.uncounted(site)
    tracker.open_entry(site)
    return site


def end_loading(tracker: Tracker, site: Site, loaded: object) -> None:
    """What was waited for at `site` is there."""
    tracker.leave_entry(site, loaded)
    tracker.fold_if_due()


def loading_failed(tracker: Tracker, site: Site, error: BaseException) -> None:
    """What was waited for at `site` will not come. If there are no more batches, the
    wait is not counted as one, but its time is booked all the same."""
    now_ns = perf_counter_ns()
    if not tracker.returns_to(site, now_ns):
        return
    if isinstance(error, StopIteration):
        tracker.site = tracker.tree.uncounted(site)
        tracker.close_entry(tracker.site)
    else:
        tracker.abort_down_to(site.caller, now_ns)


# Communication with other processes


def begin_communication(
    tracker: Tracker, collective: str, is_call: bool
) -> Site | None:
    """Begin a call of a function of ``torch.distributed``, or to wait for what one has
    begun. None if that is a part of something else: of another such call, of waiting
    for gradients, or of loading data."""
    if tracker.site.phase in _WHOLE_PHASES:
        return None
    site = tracker.entry_site(communication_name(collective), "communication")
    if not is_call:
        site = tracker.tree.uncounted(site)
    tracker.open_entry(site)
    return site


def communication_failed(tracker: Tracker, site: Site) -> None:
    """What was begun at `site` is left by an exception."""
    now_ns = perf_counter_ns()
    if tracker.returns_to(site, now_ns):
        tracker.abort_down_to(site.caller, now_ns)


def communicated(tracker: Tracker, exchange: Exchange) -> None:
    """Book the time since `exchange` began as communication; no call is counted."""
    site = begin_communication(tracker, exchange.name, is_call=False)
    if site is not None:
        site.start_ns = max(exchange.start_ns, site.caller.start_ns)
        took_ns = perf_counter_ns() - site.start_ns
        tracker.exchanges.add(exchange, waiting_ns=took_ns, elapsed_ns=took_ns)
        tracker.close_entry(site)


# What torch.compile does


def begin_compiling(tracker: Tracker) -> Site | None:
    """torch.compile begins to compile, in the middle of whatever runs here: that is not
    the time of the call that it is done for. None if another thread compiles."""
    if not tracker.works_here():
        return None
    site = tracker.entry_site(COMPILING_NAME, "compiling")
    site.is_region = True
    tracker.open_entry(site)
    return site


def end_compiling(tracker: Tracker, site: Site) -> None:
    """torch.compile has ended what it began at `site`."""
    if tracker.works_here():
        tracker.leave_entry(site)
