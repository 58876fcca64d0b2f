"""How often `profile()` asks CUDA for something per module call, and calls Python.

Counted in training steps of two chains of modules, of which the longer one has 100
more: what is done per step or pass drops out. Each module has a call in forward and
one in backward. The bare steps' own calls are subtracted.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, Final

import torch
from bench import device, planted_device, wait
from bench_overhead import quiet_stderr
from gpu_results import Progress
from kernel_times import recorded
from models import Workload, training
from results import Table
from torch import nn
from torch.profiler import record_function

import torchprof_hooks
from torchprof_hooks import profile

Counts = Counter[str]

SHORT, LONG = 20, 120
#: Steps of a profile, and those of them that count, after what is done once. In these
#: first ones, a device is stamped in any case.
ALL_STEPS, STEPS = 8, 6
_STEP: Final = "counted step"

RECORDS: Final = "event records"
CAPTURES: Final = "questions about captures"
#: Names of CUDA's functions (and of the like on AMD's) by what they do.
KINDS: Final = {
    RECORDS: ("EventRecord",),
    "queries": ("EventQuery", "StreamQuery"),
    "event times": ("EventElapsedTime",),
    "waits": ("EventSynchronize", "StreamSynchronize", "DeviceSynchronize"),
    CAPTURES: ("IsCapturing", "GetCaptureInfo"),
}
CREATIONS: Final = "event creations"
PYTHON: Final = "Python calls"
#: What the planted device counts.
PLANTED: Final = {
    "records": RECORDS,
    "events": CREATIONS,
    "queries": "queries",
    "asked_whether_captured": CAPTURES,
}
_OURS: Final = str(torchprof_hooks.__path__[0])


def chain_of(modules: int) -> Workload:
    """Training of small linear layers, one after another."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(modules))).to(device())
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.randn(4, 8, device=device())
    name = f"{modules} x nn.Linear(8, 8)"
    return training(name, model, optimizer, lambda: model(x).square().mean())


def kind_of(name: str) -> str | None:
    """What a call of the driver does, if we count that."""
    bare = name.removeprefix("cuda").removeprefix("hip").removeprefix("cu")
    for kind, prefixes in KINDS.items():
        if any(prefix in bare for prefix in prefixes):
            return kind if bare != name else None
    return None


def most_of_steps(calls: Iterable[tuple[int, str]], starts: Sequence[int]) -> Counts:
    """Of each kind, the calls in the step that has most.

    calls: when each was, and its kind.
    starts: when each step began, in order.
    """
    by_step = [Counts() for _ in starts]
    for time_ns, kind in calls:
        step = bisect_right(starts, time_ns) - 1
        if step >= 0:
            by_step[step][kind] += 1
    kinds = {kind for counts in by_step for kind in counts}
    return Counts({kind: max(each[kind] for each in by_step) for kind in kinds})


def driver_calls(workload: Workload) -> Counts:
    """What a step asks the driver for."""
    return (
        _planted_calls(workload) if device() == "planted" else _traced_calls(workload)
    )


def _planted_calls(workload: Workload) -> Counts:
    """As the device that tests plant tells it."""

    def state() -> Counts:
        found = planted_device().state()
        return Counts({kind: found[key] for key, kind in PLANTED.items()})

    return _most_of_steps(workload, state)


def _most_of_steps(workload: Workload, state: Callable[[], Counts]) -> Counts:
    """Of what grows with each step, that of the step with most."""
    most = Counts()
    for _ in range(STEPS):
        before = state()
        workload.step()
        wait()
        most |= state() - before
    return most


def _traced_calls(workload: Workload) -> Counts:
    """As torch's profiler tells it."""
    with recorded() as events:
        for _ in range(STEPS):
            with record_function(_STEP):
                workload.step()
        wait()
    starts, calls = [], []
    for event in events:
        if event.device_type().name != "CPU":
            continue
        if event.name() == _STEP:
            starts.append(event.start_ns())
        elif (kind := kind_of(event.name())) is not None:
            calls.append((event.start_ns(), kind))
    return most_of_steps(calls, sorted(starts))


def python_calls(workload: Workload) -> Counts:
    """Functions of ours that run in a step, in the thread of the program; of some
    steps, that with fewest: what a call does is in each, what a slow step does is not.
    """
    counts = []
    for _ in range(STEPS):
        with _counting_python() as found:
            workload.step()
        counts.append(found[PYTHON])
    return Counts({PYTHON: min(counts)})


@contextmanager
def _counting_python() -> Iterator[Counts]:
    found = Counts()

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_OURS):
            found[PYTHON] += 1

    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(None)


class Creations:
    """Counts events that are made, which torch's profiler does not show: torch tells
    of them from the first use of this on, until the process ends."""

    def __init__(self) -> None:
        import torch.cuda._gpu_trace as told

        self._made = 0
        told.register_callback_for_event_creation(self._count)
        torch._C._activate_gpu_trace()

    def _count(self, _: int) -> None:
        self._made += 1

    def __call__(self, workload: Workload) -> Counts:
        return _most_of_steps(workload, lambda: Counts({CREATIONS: self._made}))


Count = Callable[[Workload], Counts]


def counted(
    count: Count, workload: Workload, make: Callable[[], AbstractContextManager[Any]]
) -> Counts:
    """What is counted in steps inside of what `make` returns."""
    with make():  # in the first one, events are made that the next one uses again
        for _ in range(ALL_STEPS):
            workload.step()
        wait()
    with make():
        for _ in range(ALL_STEPS - STEPS):
            workload.step()
        wait()
        return count(workload)


def per_call(count: Count) -> dict[str, float]:
    """What `profile()` adds per module call, by kind."""
    added = []
    for modules in (LONG, SHORT):  # the long one makes the events for both
        workload = chain_of(modules)
        ours = counted(count, workload, profile)
        if count is driver_calls and not ours[RECORDS]:
            raise RuntimeError("no event was recorded, or that is not shown")
        ours.subtract(counted(count, workload, nullcontext))
        added.append(ours)
    calls = 2 * (LONG - SHORT)
    kinds = dict.fromkeys(kind for counts in added for kind in counts)
    return {kind: (added[0][kind] - added[1][kind]) / calls for kind in kinds}


def counts_table(found: dict[str, float]) -> Table:
    rows = [[kind, f"{count:.3f}"] for kind, count in found.items()]
    notes = [
        "A module has a call in forward and one in backward. Of calls of the driver, "
        f"the step with most of {STEPS} counts; Python is that of the program's "
        "thread, in the step with fewest."
    ]
    return Table("What `profile()` does per module call", ["", "times"], rows, notes)


def main() -> None:
    torch.set_num_threads(1)
    progress = Progress("gpu_counts")
    found: dict[str, float] = {}
    makers: dict[str, Callable[[], Count]] = {
        "driver": lambda: driver_calls,
        "python": lambda: python_calls,
        "creations": Creations,
    }
    # Of what is done at no time, there is no count.
    driver = KINDS if device() == "cuda" else PLANTED.values()
    shown = {"driver": driver, "python": [PYTHON], "creations": [CREATIONS]}
    for name, make in makers.items():
        if name == "creations" and device() != "cuda":
            continue
        with progress.part(name), quiet_stderr():
            counts = per_call(make())
            found |= dict.fromkeys(shown[name], 0.0) | counts
            progress.add([], {"per_call": found})
    progress.add([counts_table(found)], {"per_call": found})


if __name__ == "__main__":
    main()
