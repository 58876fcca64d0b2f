"""Processes that exchange by NCCL, each with a device, and replicas in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.devices.cuda import planted
from tests.devices.cuda.work import Layer, busy, device_ns
from tests.ranks.processes import run_processes
from torchprof_hooks import Profile, profile

pytestmark = pytest.mark.gpu
STEPS = 8  # all of them are stamped
LATE_NS = 10_000  # that the last rank's second layer takes longer, in forward
REDUCE_NS, GATHER_NS = 500, 300

#: Since 2.15, torch has another one by the name of "nccl".
IS_NEW = hasattr(distributed, "ProcessGroupNCCL2")
OLDER = "nccl-legacy" if IS_NEW else "nccl"
BACKENDS = pytest.mark.parametrize("backend", sorted({"nccl", OLDER}))


class Found(NamedTuple):
    """What a rank has measured. ends_ns: of its collectives, and their names."""

    profile: Profile
    ends_ns: list[tuple[str, int]]


def measured(work: Callable[[int], Callable[[], Any]], rank: int) -> Found:
    """Steps of what `work` makes, in one rank."""
    step = work(rank)
    for kind, ns in (("Reduce", REDUCE_NS), ("AllGather", GATHER_NS)):
        planted.plan(f"ncclDevKernel_{kind}", ns)
        planted.plan(f"ncclDevKernel_All{kind}", ns)
    step()  # after which gradients have the buckets that they keep
    torch.cuda.synchronize()
    before = len(planted.ran())
    with profile() as prof:
        for _ in range(STEPS):
            step()
            torch.cuda.synchronize()
    assert planted.missing() == []
    assert planted.number("bad records") == planted.number("bad times") == 0
    ends = [(ran.name, ran.end_ns) for ran in planted.ran()[before:]]
    return Found(prof.profile, [end for end in ends if end[0].startswith("nccl")])


def on_two_ranks(backend: str, work: Callable[[int], Callable[[], Any]]) -> list[Found]:
    found: list[Found] = run_processes(partial(measured, work), backend=backend)
    assert found[0].ends_ns == found[1].ends_ns != []
    return found


def layers(rank: int) -> nn.Sequential:
    first = Layer(1000, 3000, device=rank)
    return nn.Sequential(first, Layer(2000 + LATE_NS * rank, 5000, device=rank))


def times(rank: int, name: str, **more: int) -> dict[tuple[str, str], int]:
    """Own times of `layers`, to which so much is added: "forward_0", say."""
    own = {"forward_0": 1000, "forward_1": 2000 + LATE_NS * rank}
    own |= {"backward_0": 3000, "backward_1": 5000}
    return {
        (f"{name}.{key[-1]}", key[:-2]): STEPS * (ns + more.get(key, 0))
        for key, ns in own.items()
    }


def replica(rank: int, bucket_cap_mb: float) -> Callable[[], None]:
    model = DistributedDataParallel(layers(rank), bucket_cap_mb=bucket_cap_mb)
    x = torch.zeros(4, device="cuda")
    return lambda: model(x).sum().backward()


ONE, EACH = 25, 1e-5
BUCKETS = pytest.mark.parametrize("bucket_cap_mb", [ONE, EACH], ids=["one", "each"])
NAME = "DistributedDataParallel.module"
WAITING = "(waiting for gradients)", "waiting"


@BUCKETS
def test_waiting_for_gradients_is_no_layers(bucket_cap_mb: float) -> None:
    work = partial(replica, bucket_cap_mb=bucket_cap_mb)
    for rank, found in enumerate(on_two_ranks(OLDER, work)):
        late_ns = 0 if rank else LATE_NS  # of the other one
        waits = {WAITING: STEPS * (late_ns + REDUCE_NS)}
        assert device_ns(found.profile) == times(rank, NAME) | waits
        [row] = [row for row in found.profile.rows() if row.kind == "waiting"]
        assert row.calls == STEPS


@pytest.mark.skipif(not IS_NEW, reason="before torch 2.15")
@BUCKETS
def test_the_newer_backend_waits_where_a_bucket_is_full(bucket_cap_mb: float) -> None:
    work = partial(replica, bucket_cap_mb=bucket_cap_mb)
    for rank, found in enumerate(on_two_ranks("nccl", work)):
        waits_ns = (0 if rank else LATE_NS) + REDUCE_NS
        if bucket_cap_mb == ONE:
            expected = times(rank, NAME, backward_0=waits_ns)
        else:
            waits = {"backward_1": waits_ns, "backward_0": REDUCE_NS}
            expected = times(rank, NAME, **waits)
        assert device_ns(found.profile) == expected


class Exchanging(nn.Module):
    """Works, the last rank longer, and sums up what it has with that of the others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = busy(x, 2000 + LATE_NS * distributed.get_rank())
        distributed.all_reduce(y)
        return busy(y, 70)


def exchanging(_: int) -> Callable[[], None]:
    model, x = Exchanging(), torch.zeros(4, device="cuda")
    return lambda: model(x)


@BACKENDS
def test_a_late_rank_is_time_of_communication(backend: str) -> None:
    for rank, found in enumerate(on_two_ranks(backend, exchanging)):
        waits_ns = (0 if rank else LATE_NS) + REDUCE_NS
        assert device_ns(found.profile) == {
            ("Exchanging", "forward"): STEPS * (2070 + LATE_NS * rank),
            ("(communication) all_reduce", "communication"): STEPS * waits_ns,
        }
        [one] = found.profile.collectives
        assert one[:5] == ("all_reduce", "default_pg", 2, STEPS, STEPS * 16)


def sharded(rank: int) -> Callable[[], None]:
    model = layers(rank)
    for layer in (*model, model):
        fully_shard(layer)
    x = torch.zeros(4, device="cuda", requires_grad=True)
    return lambda: model(x).sum().backward()


@BACKENDS
def test_shards_are_gathered_on_streams_of_their_own(backend: str) -> None:
    for rank, found in enumerate(on_two_ranks(backend, sharded)):
        late_ns = 0 if rank else LATE_NS
        # The first layer's shards are gathered a second time while the second layer's
        # backward runs, for which the other rank has to come to that.
        gathers_ns = max(0, late_ns + GATHER_NS - 5000)
        # At the end, it waits for the sum of the first layer's gradients.
        ends_ns = late_ns + 5000 + 3000 + REDUCE_NS
        waits_ns = ends_ns - (5000 + gathers_ns + 3000)
        expected = times(
            rank,
            "Sequential",
            forward_0=GATHER_NS,
            backward_1=gathers_ns,
            backward_0=waits_ns,
        )
        assert device_ns(found.profile) == expected
        exchanged = {one.name: one[3:5] for one in found.profile.collectives}
        assert exchanged == {
            "all_gather_into_tensor": (4 * STEPS, 4 * STEPS * 16),
            "reduce_scatter_tensor": (2 * STEPS, 2 * STEPS * 16),
        }


def exchanged(rank: int) -> list[Any]:
    mine = torch.tensor([rank + 1, 5]).cuda()  # kernels would compute nothing
    gathered = [torch.zeros_like(mine) for _ in range(2)]
    distributed.all_gather(gathered, mine)
    other = torch.zeros_like(mine)
    ends = (distributed.isend, mine), (distributed.irecv, other)
    ops = [distributed.P2POp(kind, tensor, 1 - rank) for kind, tensor in ends]
    for work in distributed.batch_isend_irecv(ops):
        work.wait()
    distributed.broadcast(mine, 1)
    assert planted.missing() == []
    return [*(one.tolist() for one in (*gathered, other, mine))]


@BACKENDS
def test_what_only_moves_has_its_values(backend: str) -> None:
    assert run_processes(exchanged, backend=backend) == [
        [[1, 5], [2, 5], [2 - rank, 5], [2, 5]] for rank in range(2)
    ]


def not_agreeing(rank: int) -> None:
    with pytest.raises(RuntimeError, match="NCCL"):
        distributed.all_reduce(torch.zeros(4 + rank, device="cuda"))


def test_ranks_have_to_agree() -> None:
    run_processes(not_agreeing, backend=OLDER)


def test_replicas_in_one_process() -> None:
    model = nn.DataParallel(nn.Sequential(Layer(1000, 3000), Layer(2000, 5000)))
    x = torch.zeros(8, 4, device="cuda", requires_grad=True)
    second, x2 = Layer(70, device=1), torch.zeros(4, device="cuda:1")
    planted.plan("ncclDevKernel_Broadcast", 300)
    planted.plan("ncclDevKernel_Reduce", 500)
    with profile() as prof:
        for _ in range(STEPS):
            second(x2)  # by which the second device is known
            model(x).sum().backward()
            for index in range(2):
                torch.cuda.synchronize(index)

    # Threads of the replicas are not followed: what they do on the first device is time
    # of the caller; and in backward, on both, of no module.
    assert device_ns(prof.profile) == {
        ("Layer", "forward"): STEPS * 70,
        ("DataParallel", "forward"): STEPS * (70 + 300 + 3000),  # both have to come
        ("(backward outside modules)", "backward"): STEPS * 2 * 8000,
        ("DataParallel", "backward"): STEPS * 500,
    }
