"""Our profilers as tools, in the same form as the others in peers.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any

from models import Workload

from tools.peers import Step, Tool
from torchprof_hooks import profile


def inside(make: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Any]:
    """How to enter a tool that needs to know nothing of the workload."""

    @contextmanager
    def enter(workload: Workload) -> Iterator[Step]:
        with make():
            yield workload.step

    return enter


def of_every_step() -> list[Tool]:
    """Ours, for one workload: made once, and entered again in each turn. They know the
    modules by then."""
    return [
        Tool("torchprof_hooks profile()", inside(cache(profile))),
        Tool(
            "torchprof_hooks profile(functions=True)",
            inside(cache(partial(profile, functions=True))),
        ),
    ]


def of_some_steps() -> list[Tool]:
    """One that chooses its steps, and goes on where it stopped in the last turn."""
    make = cache(partial(profile, max_overhead=0.01))
    return [Tool("torchprof_hooks profile(max_overhead=0.01)", inside(make))]
