"""What Kineto says that the kernels of each module took: the truth for device times.

In forward, kernels belong to the innermost module that they were launched in; in
backward, to the one in which the autograd node was made that launches them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import nn
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

Phase = Literal["forward", "backward"]
PHASES: Final[tuple[Phase, ...]] = ("forward", "backward")

_MODULE: Final = "module: "
_NODE: Final = "autograd::engine::evaluate_function: "
_LEAF: Final = f"{_NODE}torch::autograd::AccumulateGrad"

#: By module ("": none) and phase.
Sums = dict[tuple[str, Phase], float]


class Trace:
    """What was recorded, once `trace` is over."""

    def __init__(self) -> None:
        self.events: Sequence[Any] = ()

    def by_module(self) -> Sums:
        """Microseconds of kernels, copies and fills."""
        return sums_by_module(self.events, kernels_us)


@contextmanager
def trace(model: nn.Module) -> Iterator[Trace]:
    """Record the kernels of `model`, with torch's profiler."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    traced = Trace()
    with _named_ranges(model), profile(activities=activities) as profiler:
        yield traced
    traced.events = profiler.events() or ()


@contextmanager
def _named_ranges(model: nn.Module) -> Iterator[None]:
    """Have a range recorded around each call of a module, with the name that our rows
    have: ``Net.blocks.0``."""
    root = type(model).__name__
    open_ranges: list[record_function] = []

    def opens(name: str) -> Callable[..., None]:
        def open_range(*_: object) -> None:
            open_ranges.append(record_function(name))
            open_ranges[-1].__enter__()  # type: ignore[no-untyped-call]

        return open_range

    def close_range(*_: object) -> None:
        open_ranges.pop().__exit__(None, None, None)

    handles = []
    for path, module in model.named_modules():
        name = f"{_MODULE}{root}.{path}" if path else f"{_MODULE}{root}"
        handles.append(module.register_forward_pre_hook(opens(name)))
        handles.append(module.register_forward_hook(close_range))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def kernels_us(event: Any) -> float:
    """What an operation put on the device, without those that it called in turn. The
    device's copies of our own ranges are none."""
    if event.name.startswith(_MODULE):
        return 0.0
    return float(sum(kernel.duration for kernel in event.kernels))


def sums_by_module(events: Iterable[Any], cost: Callable[[Any], float]) -> Sums:
    """The sum of `cost` over operations, each without those inside of it."""
    placed = list(_placed(events))
    makers = _makers(placed)
    sums: defaultdict[tuple[str, Phase], float] = defaultdict(float)
    last_owner: dict[int, str] = {}  # by thread
    for event, module, node in placed:
        if node is None:
            sums[module, "forward"] += cost(event)
            continue
        # What adds to a leaf has no number. It runs after the node that it is fed by.
        if not node.name.startswith(_LEAF):
            last_owner[event.thread] = makers.get(node.sequence_nr, "")
        sums[last_owner.get(event.thread, ""), "backward"] += cost(event)
    return dict(sums)


class _Placed(NamedTuple):
    """An operation, the module that it was called in, and the node that runs it."""

    event: Any
    module: str
    node: Any


def _placed(events: Iterable[Any]) -> Iterator[_Placed]:
    """In the order of their begin, thread by thread."""
    host = [e for e in events if e.device_type == DeviceType.CPU and not e.is_async]
    host.sort(key=lambda e: (e.thread, e.time_range.start, -e.time_range.end))
    around: list[Any] = []
    for event in host:
        while around and not _is_inside(event, around[-1]):
            around.pop()
        around.append(event)
        modules = [e.name for e in around if e.name.startswith(_MODULE)]
        nodes = [e for e in around if e.name.startswith(_NODE)]
        module = modules[-1].removeprefix(_MODULE) if modules else ""
        yield _Placed(event, module, nodes[-1] if nodes else None)


def _is_inside(event: Any, other: Any) -> bool:
    begins_before: bool = event.time_range.start < other.time_range.end
    return begins_before and event.thread == other.thread


def _makers(placed: Iterable[_Placed]) -> dict[int, str]:
    """The module that made the autograd node with a number: that of the operation which
    was the last to begin before the next number was due."""
    return {
        event.sequence_nr: module
        for event, module, node in placed
        if node is None and event.sequence_nr >= 0
    }
