"""The gate for what hooks keep in memory: objects and bytes, to the last one."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import pytest

from tests.cost.chains import (
    CASES,
    LONG,
    PACKAGE,
    SHORT,
    Case,
    make_chain,
    make_comparable,
    run,
)
from torchprof_hooks import FunctionHook, profile
from torchprof_hooks.capture.core import CORE
from torchprof_hooks.profiler import Profiler

#: Objects that the log keeps of a link and step until it is folded: the stamps of the
#: forward (2; with functions, of the module's and of the function's), and that of the
#: boundary in backward (1), which ends one call and begins the next. The native core
#: adds up at once.
OBJECTS_IN_LOG = {
    "profile()": 3,
    "profile(functions=True)": 5,
    "link timer": 2,
    "link timer with backward": 3,
}

WARM_UP = 30
#: Steps in which something kept of each would be seen, and how often they are run: more
#: than are held back until it is clear that no optimizer follows them.
STEPS, ROUNDS = 60, 8
OURS = f"{PACKAGE}/"


class Kept(NamedTuple):
    """What this package holds of what it has made."""

    objects: int
    bytes: int

    def less(self, before: Kept) -> Kept:
        return Kept(self.objects - before.objects, self.bytes - before.bytes)


#: What the tables may hold more at one time than at another.
UNEVEN = Kept(objects=40, bytes=2000)


def kept() -> Kept:
    gc.collect()  # also empties Python's lists of freed objects for later use
    traces = tracemalloc.take_snapshot().traces
    sizes = [
        trace.size for trace in traces if trace.traceback[0].filename.startswith(OURS)
    ]
    return Kept(len(sizes), sum(sizes))


@pytest.fixture(autouse=True)
def comparable(monkeypatch: pytest.MonkeyPatch) -> None:
    make_comparable(monkeypatch)


@pytest.fixture
def traced(small_tables: None) -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what was there before need not be looked at again
    tracemalloc.start()
    yield
    tracemalloc.stop()


def fold(measurer: Any) -> None:
    """Empty the log."""
    if isinstance(measurer, Profiler):
        steps: Any = measurer._rounds[0]._steps
        steps.tracker.log.fold()
    elif not isinstance(measurer, FunctionHook):
        measurer._tracker_of_thread().log.fold()


def objects_per_step(case: Case, links: int) -> float:
    """How many a step leaves behind in the log."""
    chain = make_chain(case, links)
    with case.enter(chain) as measurer:
        run(chain, WARM_UP)
        fold(measurer)
        counts = [kept().objects]
        for _ in range(ROUNDS):
            run(chain, 5)
            counts.append(kept().objects)
    return median(after - before for before, after in pairwise(counts)) / 5


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", OBJECTS_IN_LOG)
def test_objects_in_the_log(name: str) -> None:
    objects = [objects_per_step(CASES[name], links) for links in (SHORT, LONG)]
    more = (objects[1] - objects[0]) / (LONG - SHORT)
    expected = OBJECTS_IN_LOG[name] if CORE.name == "python" else 0
    assert more == pytest.approx(expected, abs=0.3)


@pytest.mark.usefixtures("traced", "ticking")  # steps of new durations take room
@pytest.mark.parametrize("name", [*OBJECTS_IN_LOG, "function timer"])
def test_nothing_is_kept_of_steps(name: str) -> None:
    case = CASES[name]
    chain = make_chain(case, SHORT)
    found = []
    with case.enter(chain) as measurer:
        for _ in range(ROUNDS):
            run(chain, STEPS)
            fold(measurer)
            found.append(kept())
    grown = [after.less(before) for before, after in pairwise(found)]
    assert min(more.objects for more in grown) < UNEVEN.objects, grown
    assert min(more.bytes for more in grown) < UNEVEN.bytes, grown


def test_sites_and_totals_do_not_grow() -> None:
    chain = make_chain(CASES["profile()"], SHORT)
    sizes = []
    with profile(functions=True) as prof:
        steps: Any = prof._rounds[0]._steps
        tracker = steps.tracker
        for _ in range(2):
            run(chain, STEPS)
            fold(prof)
            sizes.append((len(tracker.sites), len(tracker.log.calls)))
    assert sizes[0] == sizes[1]
