"""All numbers of communication with other processes, in a group of one.

Only what anybody can ask of `profile()` is looked at: this holds however it measures.
"""

from __future__ import annotations

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
from tests.helpers import in_thread
from tests.planted import Work
from torchprof_hooks import profile
from torchprof_hooks.kernel.steps import StepDetector
from torchprof_hooks.profiles.collectives import Collective

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
    """Beginning to communicate takes 4 ms, and to wait for a tensor 8."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func.namespace in ("c10d", "_c10d_functional") and "wrap" not in str(func):
            burn(8 if "wait" in str(func) else 4)
        return func(*args, **(kwargs or {}))


@each_option
@pytest.mark.usefixtures("alone")
def test_what_is_begun_and_waited_for_later_is_one_call(options: Any) -> None:
    """What lies between begin and end is no time of it, but the exchange went on."""
    model = Does(lambda: burn(5))
    with profile(**options) as prof, Slow():
        for _ in range(2):
            work: Any = distributed.all_reduce(X.clone(), async_op=True)
            model(X)
            work.wait()
            work.wait()  # again: of what, nobody knows
    rows = found(prof.profile)
    row = rows.pop(("(communication) all_reduce", "communication"))
    assert (row.calls, row.own) == (2, 2 * 4)
    again = rows.pop(("(communication) wait", "communication"))
    assert (again.calls, again.own) == (2, 0)
    assert rows == {("Does", "forward"): calls(5, 5)}
    [sums, waits] = prof.profile.collectives
    assert waits == Collective("wait", calls=2)
    assert sums == Collective(
        *("all_reduce", "default_pg", 1),
        calls=2,
        bytes=2 * X.nbytes,
        call_ns=2 * 4 * MS,
        elapsed_ns=2 * 9 * MS,
    )
    assert sums.bytes_per_second == pytest.approx(2 * X.nbytes / 0.018)


@each_option
@pytest.mark.usefixtures("alone")
def test_waits_for_functional_collectives(options: Any) -> None:
    """The begin is time of the caller; of what a wait is for, nothing is known."""
    group: Any = distributed.group.WORLD
    model = Does(lambda: functional.all_reduce(X, "sum", group).wait())
    with profile(**options) as prof, Slow():
        for _ in range(2):
            model(X)
    rows = found(prof.profile)
    waits = rows.pop(("(communication) wait_tensor", "communication"))
    assert (waits.calls, waits.own) == (2, 2 * 8)
    assert rows[("Does", "forward")].own == 2 * 4
    assert prof.profile.collectives == (
        Collective(
            "wait_tensor", calls=2, waiting_ns=2 * 8 * MS, elapsed_ns=2 * 8 * MS
        ),
    )


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
    model = DistributedDataParallel(nn.Sequential(Work(1, 2)))
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


@pytest.mark.usefixtures("alone")
@each_option
def test_our_work_at_the_end_of_waiting_is_no_time_of_the_pass(
    options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_ended = StepDetector.call_ended

    def late(self: StepDetector, *ended: Any) -> None:
        burn(5)
        call_ended(self, *ended)

    monkeypatch.setattr(StepDetector, "call_ended", late)
    model = DistributedDataParallel(nn.Sequential(Work(1, 2)))
    with profile(**options) as prof:
        x = X.clone().requires_grad_()
        at_the_end(x, partial(burn, 9))
        model(x).sum().backward()
    rows = found(prof.profile)
    assert rows["(backward outside modules)", "backward"] == calls(2, own=0)
    assert rows["(waiting for gradients)", "waiting"] == calls(9)


@pytest.mark.usefixtures("alone")
@each_option
def test_only_the_thread_that_prepared_gradients_waits_for_them(options: Any) -> None:
    model = DistributedDataParallel(nn.Sequential(Work(1, 2)))

    def elsewhere() -> None:
        with profile(**options) as other:
            x = X.clone().requires_grad_()
            at_the_end(x, partial(burn, 7))
            Work(3, 4)(x).sum().backward()
        rows = found(other.profile)
        assert ("(waiting for gradients)", "waiting") not in rows
        assert rows["(autograd engine)", "backward"].own == 7

    with profile(**options) as prof:
        x = X.clone().requires_grad_()
        at_the_end(x, partial(burn, 9))
        loss = model(x).sum()
        in_thread(elsewhere)
        loss.backward()
    rows = found(prof.profile)
    assert rows["(waiting for gradients)", "waiting"] == calls(9)
    assert ("(autograd engine)", "backward") not in rows


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
