"""The profilers that are compared, ours and others, each as a context around training.

A tool is entered with a workload, and yields the step to run in its place: some have to
be told where a step begins. What makes a table or a file in the end is part of leaving.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from bench import device
from models import Workload
from torch.profiler import ProfilerActivity
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from torchprof_hooks import profile

Step = Callable[[], None]

# Where the Makefile puts those that other tools would take notice of, or whose
# requirements contradict those of others.
sys.path.append(str(Path(sys.prefix) / "peers"))
os.environ.setdefault("DS_ACCELERATOR", device())


@dataclass(frozen=True)
class Tool:
    """A tool, and how to use it.

    module: what must be there to import.
    dear: it is so slow that it gets fewer rounds.
    """

    name: str
    enter: Callable[[Workload], AbstractContextManager[Step]]
    module: str = "torch"
    dear: bool = False

    def why_missing(self) -> str | None:
        """Why it cannot be used here; None if it can."""
        try:
            import_module(self.module)
        except Exception as error:  # a broken installation may raise anything
            return short(error)
        return None


def short(error: Exception) -> str:
    """An error in half a line."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else ""
    text = text if len(text) <= 70 else f"{text[:67]}..."
    return f"{type(error).__name__}: {text}"


def versions() -> dict[str, str]:
    """Versions of what is installed, by the names they are installed by."""
    found = {}
    for name in ("torch", "transformers", "torchprof", "deepspeed"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


@contextmanager
def torch_profiler(workload: Workload) -> Iterator[Step]:
    activities = [ProfilerActivity.CPU]
    if device() == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities):
        yield workload.step


@contextmanager
def module_tracker(workload: Workload) -> Iterator[Step]:
    with ModuleTracker():
        yield workload.step


@contextmanager
def flop_counter(workload: Workload) -> Iterator[Step]:
    with FlopCounterMode(display=False):
        yield workload.step


class BackwardHooksTimer:
    """What users write by hand: times of each module from its four kinds of hooks."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.spent_ns: Counter[tuple[torch.nn.Module, str]] = Counter()
        self._begun_ns: dict[tuple[torch.nn.Module, str], int] = {}
        self._handles = []
        begin, end = self._begin, self._end
        for module in model.modules():
            self._handles += [
                module.register_forward_pre_hook(partial(begin, "forward")),
                module.register_forward_hook(partial(end, "forward")),
                module.register_full_backward_pre_hook(partial(begin, "backward")),
                module.register_full_backward_hook(partial(end, "backward")),
            ]

    def _begin(self, phase: str, module: torch.nn.Module, *_: Any) -> None:
        self._begun_ns[module, phase] = perf_counter_ns()

    def _end(self, phase: str, module: torch.nn.Module, *_: Any) -> None:
        begun_ns = self._begun_ns.pop((module, phase), None)
        if begun_ns is not None:
            self.spent_ns[module, phase] += perf_counter_ns() - begun_ns

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


@contextmanager
def full_backward_hooks(workload: Workload) -> Iterator[Step]:
    timer = BackwardHooksTimer(workload.model)
    try:
        yield workload.step
    finally:
        timer.remove()


@contextmanager
def torchprof(workload: Workload) -> Iterator[Step]:
    """Without its table: it asks torch for a function that is no longer there."""
    from torchprof import Profile

    with Profile(workload.model, use_cuda=device() == "cuda"):
        yield workload.step


@contextmanager
def deepspeed_flops(workload: Workload) -> Iterator[Step]:
    """From its start to its printed profile; it looks at forwards only."""
    from deepspeed.profiling.flops_profiler import FlopsProfiler

    profiler = FlopsProfiler(workload.model)
    profiler.start_profile()
    try:
        yield workload.step
        profiler.print_model_profile(output_file=os.devnull)
    finally:
        profiler.stop_profile()
        profiler.end_profile()


PEERS: Sequence[Tool] = (
    Tool("torch.profiler", torch_profiler),
    Tool("ModuleTracker", module_tracker),
    Tool("FlopCounterMode", flop_counter, dear=True),
    Tool("full backward hooks", full_backward_hooks),
    Tool("torchprof", torchprof, "torchprof", dear=True),
    Tool("DeepSpeed flops profiler", deepspeed_flops, "deepspeed"),
)


def inside(make: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Any]:
    """How to enter a tool that needs to know nothing of the workload."""

    @contextmanager
    def enter(workload: Workload) -> Iterator[Step]:
        with make():
            yield workload.step

    return enter


def our_tools() -> list[Tool]:
    """For one workload: made once, and entered again in each turn. They know the
    modules by then."""
    return [
        Tool("torchprof_hooks profile()", inside(cache(profile))),
        Tool(
            "torchprof_hooks profile(functions=True)",
            inside(cache(partial(profile, functions=True))),
        ),
    ]
