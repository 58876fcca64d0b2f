"""The gate for what hooks keep in memory: objects and bytes, to the last one."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from tests.cost.chains import (
    CASES,
    PACKAGE,
    SHORT,
    make_chain,
    make_comparable,
    run,
)
from torchprof_hooks import FunctionHook
from torchprof_hooks.profiler import Profiler

NAMES = (
    *("profile()", "profile(functions=True)"),
    *("link timer with backward", "function timer"),
)
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
        steps: Any = measurer._threads.rounds[0]._steps
        steps.tracker.log.fold()
    elif not isinstance(measurer, FunctionHook):
        measurer._here.subscription.tracker.log.fold()


@pytest.mark.usefixtures("traced", "ticking")  # steps of new durations take room
@pytest.mark.parametrize("name", NAMES)
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
