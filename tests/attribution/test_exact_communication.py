"""All numbers of communication with other processes, in a group of one.

Only what anybody can ask of `profile()` is looked at: this holds however it measures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from tests.doing import Does, X, at_the_end, in_communication
from tests.exact import calls, each_option, found
from tests.fake_clock import MS, burn
from tests.planted import Work
from torchprof_hooks import profile
from torchprof_hooks.profiles.collectives import BUCKETS_NAME, Collective

pytestmark = pytest.mark.usefixtures("clock")


@pytest.mark.usefixtures("alone")
@each_option
def test_communication(options: Any) -> None:
    work = Work(1)
    with profile(**options) as prof:
        for takes in (8, 3, 4):
            in_communication(partial(burn, takes))
            work(X)
            distributed.all_reduce(X.clone())
            waited_for: Any = distributed.all_reduce(X.clone(), async_op=True)
            waited_for.wait()
    assert found(prof.profile) == {
        ("Work", "forward"): calls(1, 1, 1),
        ("(communication) all_gather_object", "communication"): calls(8, 3, 4),
        ("(communication) all_reduce", "communication"): calls(*[0] * 6),
    }
    objects, sums = prof.profile.collectives
    assert objects.bytes > 0
    of_all = ("default_pg", 1)
    assert objects._replace(bytes=0) == Collective(
        "all_gather_object", *of_all, calls=3, call_ns=15 * MS, elapsed_ns=15 * MS
    )
    assert sums == Collective("all_reduce", *of_all, calls=6, bytes=6 * X.nbytes)


class Slow(TorchDispatchMode):
    """Beginning to communicate takes 4 ms, and to wait for that 8."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func.namespace in ("c10d", "_c10d_functional") and "wrap" not in str(func):
            burn(8 if "wait" in str(func) else 4)
        return func(*args, **(kwargs or {}))


def begun() -> Any:
    """What is waited for when it is used first."""
    group: Any = distributed.group.WORLD
    return functional.all_reduce(X, "sum", group)


def as_views() -> Any:
    whole = begun()
    return whole.view(3, 1)[:, 0] + 1 + whole


def without_wrapper() -> Any:
    group: Any = distributed.group.WORLD
    return functional.wait_tensor(
        torch.ops._c10d_functional.all_reduce(X, "sum", group.group_name)
    )


def as_futures() -> Any:
    work: Any = distributed.all_reduce(X.clone(), async_op=True)
    future = work.get_future()
    then = future.then(lambda done: done.value()[0])
    torch.futures.wait_all([future, then])
    work.wait()
    return then.wait()


#: Ways to begin a collective and to wait for it later, and how long the waiting takes.
#: (The clock does not see how a result waits that is simply used.)
WAYS: dict[str, tuple[Callable[[], Any], int]] = {
    "functional": (lambda: begun() + 1, 0),
    "views": (as_views, 0),
    "waited for by hand": (lambda: begun().wait(), 8),
    "without wrapper": (without_wrapper, 8),
    "futures": (as_futures, 0),
}


@each_option
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("way", WAYS)
def test_what_is_begun_and_waited_for_later_is_one_call(options: Any, way: str) -> None:
    model = Does(lambda: burn(1))
    call, waits = WAYS[way]
    with profile(**options) as prof, Slow():
        for _ in range(2):
            model(X)
            call()
    rows = found(prof.profile)
    row = rows.pop(("(communication) all_reduce", "communication"))
    assert rows == {("Does", "forward"): calls(1, 1)}
    assert (row.calls, row.own) == (2, 2 * (4 + waits))
    assert prof.profile.collectives == (
        Collective(
            *("all_reduce", "default_pg", 1),
            calls=2,
            bytes=2 * X.nbytes,
            call_ns=2 * 4 * MS,
            waiting_ns=2 * waits * MS,
            elapsed_ns=2 * (4 + waits) * MS,
        ),
    )


@pytest.mark.usefixtures("alone")
def test_what_lies_between_begin_and_end_is_no_time_of_ours() -> None:
    model = Does(lambda: burn(5))
    with profile() as prof, Slow():
        x = begun()
        model(X)
        x.wait()
    [found] = prof.profile.collectives
    times = (found.call_ns, found.waiting_ns, found.elapsed_ns)
    assert times == (4 * MS, 8 * MS, 17 * MS)
    assert found.bytes_per_second == pytest.approx(X.nbytes / 0.017)


@pytest.mark.usefixtures("alone")
def test_two_groups_are_two_collectives() -> None:
    other = distributed.new_group([0], group_desc="other")
    with profile() as prof:
        distributed.all_reduce(X.clone())
        distributed.all_reduce(X.clone(), group=other)
        distributed.broadcast(torch.ones(5, dtype=torch.int8), 0, other)
    assert [(c.name, c.group, c.bytes) for c in prof.profile.collectives] == [
        ("all_reduce", "default_pg", 12),
        ("all_reduce", "other", 12),
        ("broadcast", "other", 5),
    ]


@pytest.mark.usefixtures("alone")
@each_option
def test_waiting_for_gradients(options: Any) -> None:
    """Other rows are the same, however long the neighbours sleep."""
    inner = nn.Sequential(Work(1, 2))
    model = DistributedDataParallel(inner)
    with profile(**options) as prof:
        for waited in (9, 3, 5):
            x = X.clone().requires_grad_()
            at_the_end(x, partial(burn, waited))
            model(x).sum().backward()
    rows, name = found(prof.profile), "DistributedDataParallel.module.0"
    assert rows[name, "forward"] == calls(1, 1, 1)
    assert rows[name, "backward"] == calls(2, 2, 2)
    assert rows["(waiting for gradients)", "waiting"] == calls(9, 3, 5)
    assert rows["(backward outside modules)", "backward"] == calls(2, 2, 2, own=0)
    assert ("(autograd engine)", "backward") not in rows
    assert sum(row.own for row in rows.values()) == 3 + 6 + 17
    [buckets] = [c for c in prof.profile.collectives if c.name == BUCKETS_NAME]
    gradients = sum(p.nbytes for p in inner.parameters())
    assert (buckets.group_size, buckets.bytes) == (1, 3 * gradients)
    assert (buckets.call_ns, buckets.waiting_ns) == (0, 17 * MS)


@pytest.mark.usefixtures("alone")
@each_option
def test_how_long_each_step_takes_without_waiting(options: Any) -> None:
    """In one call or another; what is exchanged in evaluations is in no step."""
    model: Any = DistributedDataParallel(nn.Sequential(Work(1, 2)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with profile(**options) as prof:
        exchanged = enumerate(((9, 4), (3, 0), (0, 13), (0, 0)))
        for number, (of_gradients, of_calls) in exchanged:
            x = X.clone().requires_grad_()
            at_the_end(x, partial(burn, of_gradients))
            model(x).sum().backward()
            in_communication(partial(burn, of_calls))
            optimizer.step()
            if number % 2:  # not in each step: then it would be a part of that
                in_communication(partial(burn, 50))
                with torch.no_grad():
                    model(X)
    own = [bucket[1:] for bucket in prof.profile.step_times.own]
    assert own == [(4, 4 * 3 * MS)]
