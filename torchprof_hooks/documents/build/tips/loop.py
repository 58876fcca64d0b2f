"""Tips on the loop around modules: what it waits for, and how it calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf
from typing import Final

from torchprof_hooks.documents.build.tips.evidence import (
    Evidence,
    Share,
    forward_ns,
    uses_device,
)
from torchprof_hooks.documents.document import Tip
from torchprof_hooks.profiles.rows import Row

#: The least share of the time in waiting for data that is mentioned.
LEAST_DATA: Final = 0.1
#: The same for communication, with waiting for other processes.
LEAST_WAITING: Final = 0.1
#: How often in a step the program may wait for a device: for the loss, every few steps.
LEAST_READS: Final = 0.5
#: From how many functions in a step on it matters what calling one costs, ...
MANY_CALLS: Final = 200
#: ... at which mean time that is a large part of it (a call costs some microseconds:
#: twice the work in calls like that takes hardly longer), ...
SMALL_CALL_NS: Final = 10_000
#: ... and from which share of the time on.
LEAST_CALLS: Final = 0.1

#: Phases that only programs of several processes have.
_OF_OTHERS: Final = ("waiting", "communication")

#: Functions that return Python values, results on the CPU, or results whose size
#: depends on elements: they wait for the device.
_READS: Final = frozenset(
    [
        "__bool__",
        "__complex__",
        "__float__",
        "__index__",
        "__int__",
        "allclose",
        "argwhere",
        "contains",
        "cpu",
        "equal",
        "is_nonzero",
        "item",
        "masked_select",
        "nonzero",
        "tolist",
        "unique",
        "unique_consecutive",
    ]
)


def data_loading(evidence: Evidence) -> Iterator[Tip]:
    """A loop that waits for batches."""
    share = evidence.of_phases("data")
    if share.fraction >= LEAST_DATA:
        yield Tip(
            f"The loop waits for data {share}",
            "give the DataLoader more workers (num_workers), or have it do less per "
            "sample.",
        )


def waiting_for_others(evidence: Evidence) -> Iterator[Tip]:
    """A process that waits for the others of its group."""
    share = evidence.of_phases(*_OF_OTHERS)
    if share.fraction < LEAST_WAITING:
        return
    every = evidence.profile.rows()
    rows = [row for row in every if row.kind in _OF_OTHERS]
    dearest = max(rows, key=lambda row: row.self_ns)
    yield Tip(
        f"Communication with other processes takes {share}, the most in "
        f"{dearest.name} ({dearest.self_ns / 1e9:.3f}s). In that is the time in which "
        "this process waits for one that comes later",
        "the one that communicates least is the one that the others wait for, and its "
        "own report says with what it is busy.",
    )


def reads_from_device(evidence: Evidence) -> Iterator[Tip]:
    """Functions that wait for a device."""
    rows = [row for row in evidence.calls if uses_device(row) and _waits(row)]
    times = Counter[str]()
    for row in rows:
        times[row.class_name] += row.calls
    per_turn = evidence.per_turn(times.total())
    if per_turn < LEAST_READS:
        return
    noun = evidence.turns.noun
    each = ", ".join(
        f"{name} {evidence.per_turn(calls):.1f}" for name, calls in times.most_common()
    )
    host = Share(sum(map(forward_ns, rows)), evidence.profile.wall_ns)
    dearest = max(rows, key=forward_ns)
    yield Tip(
        f"Elements are read from a device about {per_turn:.1f} times per {noun} "
        f"({each}), for about {host}, the most in {dearest.name}",
        "each time, the program waits until the device has done all before it, and "
        "prepares nothing meanwhile. Keep results on the device and read them every so "
        "many steps.",
    )


def _waits(row: Row) -> bool:
    if row.class_name == "getitem":  # by a mask
        return any(kind.startswith(("bool@", "uint8@")) for kind in row.inputs[1:])
    if row.class_name == "where":  # only a condition: its nonzero elements
        return len(row.inputs) == 1
    return row.class_name in _READS


def small_functions(evidence: Evidence) -> Iterator[Tip]:
    """Functions so short that calling them is much of the work."""
    per_turn = evidence.per_turn(sum(row.calls for row in evidence.calls))
    totals = [each for row in evidence.calls for each in row.phases.values()]
    calls = sum(each.calls for each in totals)
    if per_turn <= MANY_CALLS:
        return
    on_device = any(map(uses_device, evidence.calls))
    profile = evidence.profile
    share = Share(sum(each.self_ns for each in totals), profile.wall_ns)
    longest_ns = max(share.part_ns, _device_ns(evidence) if on_device else 0)
    if longest_ns < SMALL_CALL_NS * calls and share.fraction >= LEAST_CALLS:
        graphs = ' (mode="reduce-overhead" on a GPU)' if on_device else ""
        yield Tip(
            f"About {per_turn:.0f} functions per {evidence.turns.noun} and their "
            f"backward take {share.part_ns / calls / 1e3:.1f}us per call, {share}, so "
            "short that calling them is a large part of it",
            "larger batches take little longer; "
            f"torch.compile{graphs} calls fewer functions.",
        )


def _device_ns(evidence: Evidence) -> float:
    """How long the device took, inf if that was not measured. A device that is busy all
    the time hides what calls cost."""
    cells = evidence.profile.cells.values()
    return sum(totals.device_self_ns for totals in cells) or inf
