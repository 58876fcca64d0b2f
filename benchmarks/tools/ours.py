"""Our profilers as tools, in the same form as the others in peers.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any

from bench_program import going_on
from models import Workload

from tools.peers import Step, Tool
from torchprof_hooks import profile
from torchprof_hooks.program.flags import Flags
from torchprof_hooks.program.recorder import make_sampler


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
    """These choose their steps, and go on where they stopped in the last turn."""
    program = make_sampler(Flags())
    return [
        Tool(
            "torchprof_hooks profile(max_overhead=0.01)",
            inside(cache(partial(profile, max_overhead=0.01))),
        ),
        Tool("torchprof_hooks whole program", inside(lambda: going_on(program))),
    ]
