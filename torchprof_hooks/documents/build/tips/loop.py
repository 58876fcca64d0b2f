"""Tips on the loop: what it waits for, how it calls functions, and what is switched on
or off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf
from typing import Final

from torchprof_hooks.documents.build.lines import lines_of_program, listed
from torchprof_hooks.documents.build.tips.evidence import Evidence
from torchprof_hooks.documents.document import Tip
from torchprof_hooks.documents.words import plural, seconds
from torchprof_hooks.profiles.names import BACKWARD_PHASES, optimizer_name
from torchprof_hooks.profiles.optimizers import OptimizerFacts
from torchprof_hooks.profiles.rows import Row

#: The least share of time in waiting for data for which there is a tip.
LEAST_DATA: Final = 0.1
#: The same for the program itself, between calls of modules.
LEAST_OUTSIDE: Final = 0.1
#: How many lines of the program are named.
_MOST_LINES: Final = 2
#: The same for communication, with waiting for other processes.
LEAST_WAITING: Final = 0.1
#: The same for optimizers that could be faster.
LEAST_OPTIMIZER: Final = 0.05
#: The same for recomputing, some of which is the price of saving memory.
LEAST_RECOMPUTE: Final = 0.15
#: The least waits for a device per step for which there is a tip: a read of the loss
#: every few steps is fewer.
LEAST_READS: Final = 0.5
#: There is a tip on small functions if a step calls more functions than this, ...
MANY_CALLS: Final = 200
#: ... each takes less than this on average, so that much of it is the cost of calling
#: (some microseconds: twice the work in such a call takes hardly longer), ...
SMALL_CALL_NS: Final = 10_000
#: ... and all take at least this share of the time.
LEAST_CALLS: Final = 0.1

#: What helps.
MORE_WORKERS: Final = (
    "give the DataLoader more workers (num_workers) if CPUs are idle, keep them from "
    "epoch to epoch (persistent_workers=True), or have it do less per sample."
)
LATEST_PROCESS: Final = "python -m torchprof_hooks ranks FOLDER tells for which."

#: Phases that only programs of several processes have.
_OF_OTHERS: Final = ("waiting", "communication")

#: The ends of `Row.inputs` that are on no device but the CPU ("?": not known).
_ON_CPU: Final = ("@cpu", "@meta", "?", "mixed")

#: Functions that return Python values, results on the CPU, or results whose size
#: depends on elements: they wait for the device.
_READS: Final = frozenset(
    (
        *("__bool__", "__complex__", "__float__", "__index__", "__int__", "allclose"),
        *("argwhere", "contains", "cpu", "equal", "is_nonzero", "item"),
        *("masked_select", "nonzero", "tolist", "unique", "unique_consecutive"),
    )
)

#: Optimizers -> devices on which their fused form is known to be faster. Not SGD on the
#: CPU: there, it waits for memory only, which fusing does not change.
_FASTER_FUSED: Final = {
    "Adagrad": ("cpu",),
    "Adam": ("cpu", "cuda"),
    "AdamW": ("cpu", "cuda"),
    "SGD": ("cuda",),
}


def data_and_program(evidence: Evidence) -> Iterator[Tip]:
    """What the loop does between steps, what takes longer first."""
    finders = [data_loading, outside_modules]
    if evidence.outside.part_ns > evidence.of_phases("data").part_ns:
        finders.reverse()
    for find in finders:
        yield from find(evidence)


def data_loading(evidence: Evidence) -> Iterator[Tip]:
    """A loop that waits for batches."""
    share = evidence.of_phases("data")
    if share.fraction >= LEAST_DATA:
        yield Tip(f"Waiting for data takes {share}, {share.gain}", MORE_WORKERS)


def outside_modules(evidence: Evidence) -> Iterator[Tip]:
    """A loop that does much itself."""
    share = evidence.outside
    if share.fraction < LEAST_OUTSIDE or not evidence.is_loop:
        return
    times, names = lines_of_program(evidence.profile, modules=False)
    lines = [f"{line} ({listed(names[line])})" for line, _ in times.most_common()]
    where = f", some around {', '.join(lines[:_MOST_LINES])}" * bool(lines)
    data = evidence.of_phases("data")
    both = evidence.share(share.part_ns + data.part_ns)
    together = f"; with waiting for data {both}, {both.gain}"
    yield Tip(
        f"The program takes {share} outside modules and optimizers, {share.gain}"
        + together * (data.fraction >= LEAST_DATA),
        f"that is its own Python and NumPy{where}: batches that it makes, logging, "
        'saving. Parts of the loop in a with torchprof_hooks.region("name") have rows '
        "of their own.",
    )


def waiting_for_others(evidence: Evidence) -> Iterator[Tip]:
    """A process that waits for the others of its group."""
    share = evidence.of_phases(*_OF_OTHERS)
    if share.fraction < LEAST_WAITING:
        return
    yield Tip(f"Waiting for other ranks takes {share}", LATEST_PROCESS)


def reads_from_device(evidence: Evidence) -> Iterator[Tip]:
    """Functions that wait for a device."""
    rows = [row for row in evidence.calls if uses_device(row) and _waits(row)]
    times = Counter[str]()
    for row in rows:
        times[row.class_name] += row.calls
    per_turn = evidence.per_turn(times.total())
    if per_turn < LEAST_READS:
        return
    each = ", ".join(
        f"{name} {evidence.per_turn(calls):.1f}" for name, calls in times.most_common()
    )
    host = evidence.share(sum(map(_forward_ns, rows)))
    dearest = max(rows, key=_forward_ns)
    yield Tip(
        f"Elements are read from a device about {per_turn:.1f} times per "
        f"{evidence.turns.noun} ({each}), for about {host}, the most in {dearest.name}",
        "each time, the program waits until the device has done all before it, and "
        "prepares nothing meanwhile. Keep results on the device and read them every so "
        "many steps.",
    )


def uses_device(row: Row) -> bool:
    """Whether an input of a function was on a device that is not the CPU."""
    return any(not kind.endswith(_ON_CPU) for kind in row.inputs)


def _waits(row: Row) -> bool:
    if row.class_name == "getitem":  # by a mask
        return any(kind.startswith(("bool@", "uint8@")) for kind in row.inputs[1:])
    if row.class_name == "where":  # only a condition: its nonzero elements
        return len(row.inputs) == 1
    return row.class_name in _READS


def _forward_ns(row: Row) -> int:
    """Own time outside of backward passes."""
    phases = row.phases.items()
    return sum(t.self_ns for phase, t in phases if phase not in BACKWARD_PHASES)


def small_functions(evidence: Evidence) -> Iterator[Tip]:
    """Functions so short that calling them is a large part of the work."""
    per_turn = evidence.per_turn(sum(row.calls for row in evidence.calls))
    if per_turn <= MANY_CALLS:
        return
    totals = [each for row in evidence.calls for each in row.phases.values()]
    calls = sum(each.calls for each in totals)
    share = evidence.share(sum(each.self_ns for each in totals))
    on_device = any(map(uses_device, evidence.calls))
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
    """The time of the device, inf if that was not measured: a device that is busy all
    the time hides the cost of calls."""
    cells = evidence.profile.cells.values()
    return sum(totals.device_self_ns for totals in cells) or inf


def anomaly_detection(evidence: Evidence) -> Iterator[Tip]:
    """Autograd looked for anomalies."""
    if evidence.program.facts.detects_anomalies:
        yield Tip(
            "Autograd's anomaly detection was on",
            "it notes a traceback for every function and searches every gradient for "
            "NaN. Switch it off (torch.autograd.set_detect_anomaly) when you have "
            "found what you look for.",
        )


def unfused_optimizers(evidence: Evidence) -> Iterator[Tip]:
    """Optimizers that have a faster form. Only the time of all of one class is known,
    so they are added up by class."""
    every = evidence.program.facts.optimizers
    names = dict.fromkeys(each.name for each in every if _can_be_faster(each))
    rows = evidence.profile.rows() if names else ()
    times = {row.name: row.self_ns for row in rows if row.kind == "optimizer"}
    for name in names:
        share = evidence.share(times.get(optimizer_name(name), 0))
        if share.fraction < LEAST_OPTIMIZER:
            continue
        alike = [each for each in every if each.name == name]
        optimizers = sum(each.optimizers for each in alike)
        tensors = plural(sum(each.parameters for each in alike), "tensor")
        among = (
            f" of the {optimizers} optimizers of this class" if optimizers > 1 else ""
        )
        yield Tip(
            f"{name} takes {share} for {tensors}{among}",
            f"{name}(..., fused=True) does the same faster.",
        )


def _can_be_faster(facts: OptimizerFacts) -> bool:
    is_known = facts.device in _FASTER_FUSED.get(facts.name, ())
    return is_known and facts.can_fuse and not facts.is_fused


def recomputing(evidence: Evidence) -> Iterator[Tip]:
    """Activation checkpoints that cost much."""
    share = evidence.of_phases("recompute")
    if share.fraction < LEAST_RECOMPUTE:
        return
    times = {
        row.name: row.phases["recompute"].cumulative_ns
        for row in evidence.profile.rows()
        if row.kind == "module" and row.phases["recompute"].calls
    }
    most = max(times, key=lambda name: times[name], default="")
    where = f", the most in {most} ({seconds(times[most])})" if most else ""
    yield Tip(
        f"Recomputing (activation checkpointing) takes {share}{where}",
        "if memory allows, checkpoint less.",
    )
