"""Calls of torch.distributed are rows of their own, one for each collective."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import all_reduce as imported_by_name

import torchprof_hooks
from tests.ranks.processes import (
    PLANTED,
    is_complete,
    milliseconds_by_phase,
    run_processes,
)
from torchprof_hooks import Profile
from torchprof_hooks.profiles.names import GROUPINGS
from torchprof_hooks.profiles.rows import Row

pytestmark = pytest.mark.slow

#: Of torch 2.13 and later; the ones before are deprecated there.
gather_single = getattr(
    distributed, "all_gather_single", distributed.all_gather_into_tensor
)
scatter_single = getattr(
    distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor
)


def two() -> list[torch.Tensor]:
    return [torch.zeros(4), torch.zeros(4)]


def exchange() -> torch.Tensor:
    x = torch.full((4,), float(distributed.get_rank()))
    other = 1 - distributed.get_rank()
    kinds = (distributed.isend, x), (distributed.irecv, received := torch.zeros(4))
    ops = [distributed.P2POp(kind, tensor, other) for kind, tensor in kinds]
    for work in distributed.batch_isend_irecv(ops):
        work.wait()
    return received


def send_and_receive() -> torch.Tensor:
    x = torch.full((4,), 7.0)
    if distributed.get_rank():
        distributed.send(x, 0)
    else:
        distributed.recv(x, 1)
    return x


def gather_objects() -> list[Any]:
    found: list[Any] = [None, None]
    distributed.all_gather_object(found, {"rank": distributed.get_rank()})
    return found


def reduced(function: Callable[..., Any]) -> torch.Tensor:
    x = torch.full((4,), 1.0 + distributed.get_rank())
    function(x)
    return x


def by_functions() -> Any:
    group: Any = distributed.group.WORLD
    return functional.all_reduce(torch.ones(4), "sum", group) + 1


def later(work: Any) -> None:
    assert work is not None
    work.wait()


#: What is called, and the rows that are there then.
CALLS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "all_reduce": (partial(reduced, distributed.all_reduce), {"all_reduce"}),
    "imported by name": (partial(reduced, imported_by_name), {"all_reduce"}),
    "async": (
        lambda: reduced(lambda x: later(distributed.all_reduce(x, async_op=True))),
        {"all_reduce"},
    ),
    "broadcast": (
        lambda: reduced(lambda x: distributed.broadcast(x, 1)),
        {"broadcast"},
    ),
    "all_gather": (
        lambda: distributed.all_gather(found := two(), torch.ones(4)) or found,
        {"all_gather"},
    ),
    "all_gather_into_tensor": (
        lambda: gather_single(found := torch.zeros(8), torch.ones(4)) or found,
        {"all_gather_into_tensor"},
    ),
    "all_gather_into_tensor async": (
        lambda: later(gather_single(torch.zeros(8), torch.ones(4), async_op=True)),
        {"all_gather_into_tensor"},
    ),
    "reduce_scatter_tensor async": (
        lambda: later(scatter_single(torch.zeros(2), torch.ones(4), async_op=True)),
        {"reduce_scatter_tensor"},
    ),
    "all_to_all_single": (
        lambda: (
            distributed.all_to_all_single(found := torch.zeros(4), torch.ones(4))
            or found
        ),
        {"all_to_all_single"},
    ),
    "all_gather_object": (gather_objects, {"all_gather_object"}),
    "barrier": (distributed.barrier, {"barrier"}),
    "functional": (by_functions, {"wait_tensor"}),
    "batch_isend_irecv": (exchange, {"send", "recv"}),
    "send and recv": (send_and_receive, {"send", "recv"}),
}


class Caller(nn.Module):
    """A module that communicates, and in rank 1 works for as long as is planted, from
    when rank 0 has come here, however slow the machine is. Processes of one machine
    have one clock: when each called, by it, tells how long rank 0 waited at least."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self.call = call
        self.called_ns = 0

    def forward(self) -> Any:
        store: Any = distributed.distributed_c10d._get_default_store()
        if distributed.get_rank() == 0:
            store.set("rank 0 is here", "")
        else:
            store.wait(["rank 0 is here"])
            time.sleep(PLANTED / 1000)
        self.called_ns = time.perf_counter_ns()
        return self.call()


def communication(profile: Profile) -> dict[str, Row]:
    return {
        row.name.removeprefix("(communication) "): row
        for row in profile.rows()
        if row.kind == "communication"
    }


def profiled_calls(
    rank: int, name: str, **options: Any
) -> tuple[Any, Any, Profile, int]:
    """What the call gives, bare and profiled, its profile, and when it began."""
    call = CALLS[name][0]
    bare, model = call(), Caller(call)
    with torchprof_hooks.profile(**options) as prof:
        found = model()
    return bare, found, prof.profile, model.called_ns


#: Bytes of a call where they are not those of 4 numbers.
BYTES = {
    "all_gather": 32,
    "all_gather_into_tensor": 32,
    "all_gather_into_tensor async": 32,
    "barrier": 0,
}


def check_exchanged(name: str, profile: Profile) -> None:
    """What is told of a call besides its time: which group and how many bytes."""
    found = profile.collectives
    assert {each.name for each in found} == communication(profile).keys()
    for each in found:
        if name == "functional":  # only the wait is seen
            assert each[1:5] == ("", 0, 1, 0)
            continue
        assert (each.group, each.group_size, each.calls) == ("default_pg", 2, 1)
        if name == "all_gather_object":
            assert each.bytes > 0
        else:
            assert each.bytes == BYTES.get(name, 16)
        assert each.elapsed_ns >= each.waiting_ns


def check_waited(profile: Profile, least_ns: float) -> None:
    """Whatever begins and waits: not in the call, but until it is complete."""
    assert sum(each.waiting_ns for each in profile.collectives) >= least_ns
    assert 1e6 * milliseconds_by_phase(profile)["communication"] >= least_ns


@pytest.mark.parametrize("name", CALLS)
def test_each_collective_is_a_row(name: str) -> None:
    answers = run_processes(partial(profiled_calls, name=name))
    for bare, found, profile, _ in answers:
        torch.testing.assert_close(found, bare, rtol=0, atol=0)
        assert is_complete(profile)
        for by in GROUPINGS:
            assert sum(row.self_ns for row in profile.rows(by)) == profile.wall_ns
        check_exchanged(name, profile)
        rows = communication(profile)
        assert rows
        assert rows.keys() <= CALLS[name][1]
        assert all(row.calls == 1 for row in rows.values())
    (*_, waiting, called_ns), (*_, late, called_late_ns) = answers
    check_waited(waiting, 0.6 * (called_late_ns - called_ns))
    assert milliseconds_by_phase(late)["forward"] >= 0.99 * PLANTED
