"""Several processes that make a group, for as long as a function runs in each."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import distributed, nn

import torchprof_hooks
from torchprof_hooks import Profile

#: Seconds after which processes that wait for each other are given up.
LONGEST = 60.0
#: Milliseconds that the last process works longer than the others, in each step.
PLANTED = 300

Work = Callable[[int], Any]


def run_processes(
    work: Work, count: int = 2, longest_s: float = LONGEST, backend: str = "gloo"
) -> list[Any]:
    """What ``work(rank)`` returned in each of `count` processes.

    longest_s: after so long, they are given up.
    backend: by which they exchange. If that is not gloo, each has a CUDA device.

    They are forks: importing torch anew would take longer than most tests.
    """
    if backend == "gloo":  # no backward pass comes before a fork that uses a device
        _prepare()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ends, processes = [], []
        for rank in range(count):
            ours, theirs = context.Pipe()
            group = rank, count, f"{folder}/store", longest_s, backend
            join = partial(join_group, *group)
            arguments = (partial(work, rank), join, theirs)
            processes.append(context.Process(target=_run, args=arguments))
            ends.append(ours)
            processes[-1].start()
            theirs.close()
        try:
            answers = [_answer(end, longest_s) for end in ends]
        finally:
            for process in processes:
                process.kill()
                process.join()
    for rank, (_, failure) in enumerate(answers):
        assert not failure, f"process {rank}:\n{failure}"
    return [result for result, _ in answers]


@cache
def _prepare() -> None:
    """Calibrate here, instead of anew in each process."""
    with torchprof_hooks.profile() as prof:
        nn.Linear(1, 1)(torch.ones(1, 1)).sum().backward()
    assert prof.profile.overhead_ns


def _answer(end: Connection, longest_s: float) -> tuple[Any, str]:
    answer: tuple[Any, str] = (None, "did not answer")
    if wait([end], longest_s):
        try:
            answer = pickle.loads(end.recv_bytes())
        except EOFError:
            answer = (None, "died")
    return answer


def _run(work: Callable[[], Any], join: Callable[[], None], end: Connection) -> None:
    answer: tuple[Any, str]
    try:
        torch.set_num_threads(1)
        join()
        answer = work(), ""
        distributed.destroy_process_group()
    except BaseException:
        answer = None, traceback.format_exc()
    end.send_bytes(pickle.dumps(answer))  # tensors by their values
    end.close()
    os._exit(0)  # without what pytest would do at the end of the process


def join_group(
    rank: int, count: int, store: str, longest_s: float = LONGEST, backend: str = "gloo"
) -> None:
    """Become one of `count` processes."""
    devices = None if backend == "gloo" else [rank]
    if devices:
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=longest_s),
    )
    # Nobody may have left when others still connect.
    distributed.barrier(device_ids=devices)


class Late(nn.Module):
    """Work that takes so many milliseconds in the last process, and none in others."""

    def __init__(self, milliseconds: float = PLANTED) -> None:
        super().__init__()
        self.milliseconds = milliseconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if distributed.get_rank() == distributed.get_world_size() - 1:
            time.sleep(self.milliseconds / 1000)
        return x


def milliseconds_by_name(profile: Profile) -> dict[str, float]:
    """Own time of each row, in all phases."""
    return {row.name: row.self_ns / 1e6 for row in profile.rows()}


def milliseconds_by_phase(profile: Profile) -> dict[str, float]:
    """Own time in each phase."""
    times: dict[str, float] = {}
    for (_, phase), totals in profile.cells.items():
        times[phase] = times.get(phase, 0.0) + totals.self_ns / 1e6
    return times


def is_complete(profile: Profile) -> bool:
    """Whether nothing is lost, and nothing below zero."""
    own = [totals.self_ns for totals in profile.cells.values()]
    return sum(own) == profile.wall_ns and min(own) >= 0
