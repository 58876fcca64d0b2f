"""All numbers of rows, in milliseconds, to be compared with planted ones."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pytest

from tests.fake_clock import MS
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.totals import Totals

#: What `profile()` can be asked for. It must not matter for the numbers of modules.
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "modules": {},
    "functions": {"functions": True},
    "memory": {"memory": True},
    "functions and memory": {"functions": True, "memory": True},
}
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


class Numbers(NamedTuple):
    """In milliseconds."""

    calls: int
    own: float
    total: float
    least: float
    most: float
    squares: float


def calls(*durations: float, own: float | None = None) -> Numbers:
    """Numbers of calls of these durations, of which so much was their own."""
    return Numbers(
        len(durations),
        sum(durations) if own is None else own,
        sum(durations),
        min(durations, default=0),
        max(durations, default=0),
        sum(d**2 for d in durations),
    )


def no_calls(own: float) -> Numbers:
    return Numbers(0, own, 0, 0, 0, 0)


def numbers(totals: Totals) -> Numbers:
    return Numbers(
        totals.calls,
        totals.self_ns / MS,
        totals.duration_ns / MS,
        totals.min_ns / MS,
        totals.max_ns / MS,
        totals.squares_ns2 / MS**2,
    )


Found = dict[tuple[str, str], Numbers]


def found(measured: ProfileData, by: Any = "module") -> Found:
    """The rows with a number in them, by name and phase."""
    rows = {
        (row.name, phase): numbers(totals)
        for row in measured.rows(by)
        for phase, totals in row.phases.items()
        if phase != "profiler"
    }
    assert sum(cell.self_ns for cell in measured.cells.values()) == measured.wall_ns
    return {key: row for key, row in rows.items() if any(row)}


def own_ms(measured: ProfileData) -> dict[tuple[str, str], float]:
    """Own milliseconds of each row, by name and phase, where there are any."""
    return {key: row.own for key, row in found(measured).items() if row.own}


def own_in(measured: ProfileData, phase: str) -> dict[str, float]:
    """Those in one phase, by name."""
    return {name: ms for (name, at), ms in own_ms(measured).items() if at == phase}


def passes(*durations: float, own: float = 0) -> Found:
    """The row of backward passes."""
    return {("(backward outside modules)", "backward"): calls(*durations, own=own)}


def outside(own: float) -> Found:
    return {("(outside modules)", "outside"): no_calls(own)}


#: The forward of one `tests.doing.Net`.
NET_FORWARD: Found = {
    ("Net", "forward"): calls(3, own=0),
    ("Net.first", "forward"): calls(1),
    ("Net.last", "forward"): calls(2),
}


def net_backward(own: float = 0) -> Found:
    """Its backward, of which so much is spent between those of the others."""
    return {
        ("Net", "backward"): calls(12 + own, own=own),
        ("Net.first", "backward"): calls(4),
        ("Net.last", "backward"): calls(8),
    }
