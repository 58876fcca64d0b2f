"""Backward passes that are not started from Python: here, by TorchScript."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import nn

from tests.capture.budgeted import Fixed, bare, followed, train
from tests.cores import NATIVE_CORE
from tests.doing import DoesInBackward
from tests.fake_clock import MS, burn
from tests.planted import Work
from torchprof_hooks import profile
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Phase

pytestmark = [NATIVE_CORE, pytest.mark.usefixtures("clock")]


def started_by_script() -> Callable[[torch.Tensor], None]:
    def backward(loss: torch.Tensor) -> None:
        loss.backward()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is to be replaced
        return torch.jit.script(backward)


run_backward = started_by_script()


def own_ns(found: ProfileData, phase: Phase) -> dict[str, int]:
    """Own time of each module, or what is not one, in a phase."""
    times: dict[str, int] = {}
    for (path, at), totals in found.cells.items():
        if at == phase and totals.self_ns:
            times[path[-1]] = times.get(path[-1], 0) + totals.self_ns
    return times


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(Work(1, 2), Work(3, 5))


def test_they_are_divided_among_modules() -> None:
    net = Net()
    with profile() as prof:
        for _ in range(3):
            run_backward(net(torch.ones(2)).sum())
    found = prof.profile
    assert own_ns(found, "backward") == {"Net.0": 3 * 2 * MS, "Net.1": 3 * 5 * MS}
    assert sum(t.self_ns for t in found.cells.values()) == found.wall_ns


def test_they_take_turns_with_others() -> None:
    net = Net()
    with profile() as prof:
        for start in (run_backward, torch.Tensor.backward, run_backward):
            start(net(torch.ones(2)).sum())
            burn(7)
    found = prof.profile
    assert own_ns(found, "backward") == {"Net.0": 3 * 2 * MS, "Net.1": 3 * 5 * MS}
    assert sum(own_ns(found, "outside").values()) == 3 * 7 * MS


def test_one_inside_of_another_pass_is_a_part_of_it() -> None:
    inner, outer = Work(1, 2), Work(3, 5)

    @torch.enable_grad()
    def run() -> None:
        run_backward(inner(torch.ones(2)).sum())

    with profile() as prof:
        outer(DoesInBackward.apply(outer(torch.ones(2)), run)).sum().backward()
    found = prof.profile
    backward = own_ns(found, "backward")
    assert backward == {"Work": 2 * 5 * MS, "Work#2": 2 * MS}
    assert sum(t.self_ns for t in found.cells.values()) == found.wall_ns


def test_one_inside_of_a_module_interrupts_it() -> None:
    inner = Work(1, 2)

    class Trains(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            burn(4)
            with torch.enable_grad():
                run_backward(inner(x).sum())
            burn(8)
            return x

    model = Trains()
    with profile() as prof:
        model(torch.ones(2))
    found = prof.profile
    assert own_ns(found, "forward")["Trains"] == 12 * MS
    assert sum(own_ns(found, "backward").values()) == 2 * MS


def test_one_that_fails_is_over() -> None:
    def fail() -> None:
        raise ValueError("mine")

    net = Net()
    with profile() as prof:
        with pytest.raises(Exception, match="mine"):
            run_backward(DoesInBackward.apply(net(torch.ones(2)), fail).sum())
        burn(7)
        run_backward(net(torch.ones(2)).sum())
        net(torch.ones(2)).sum().backward()
    found = prof.profile
    assert own_ns(found, "backward") == {"Net.0": 2 * 2 * MS, "Net.1": 2 * 5 * MS}
    assert sum(own_ns(found, "outside").values()) >= 7 * MS
    assert sum(t.self_ns for t in found.cells.values()) == found.wall_ns


def test_functions_are_divided_too() -> None:
    net = Net()
    with profile(functions=True) as prof:
        run_backward(net(torch.ones(2)).sum())
    backward = own_ns(prof.profile, "backward")
    assert backward == {"_Burning(2, scalar)": 7 * MS}


def test_of_more_threads_than_a_hand_has_fingers() -> None:
    """Each in a profile of its own, and all in their passes at once."""
    count = 12
    all_are_in = Barrier(count)

    def meet() -> None:
        all_are_in.wait(60)

    class Last(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = DoesInBackward.apply(x, meet)
            return result

    def work(number: int) -> dict[str, int]:
        start = run_backward if number % 2 else torch.Tensor.backward
        model = nn.Sequential(Last(), nn.Linear(2, 2), Last())
        with profile() as prof:
            start(model(torch.ones(2, requires_grad=True)).sum())
        return {
            path[-1]: totals.calls
            for (path, phase), totals in prof.profile.cells.items()
            if phase == "backward"
        }

    with ThreadPoolExecutor(count) as pool:
        counted = list(pool.map(work, range(count)))
    for calls in counted:
        assert calls["Sequential.0"] == calls["Sequential.1"] == 1
        assert calls["Sequential.2"] == 1


def test_nobody_hears_after_the_end() -> None:
    net = Net()
    with profile() as prof:
        run_backward(net(torch.ones(2)).sum())
    before = prof.profile
    run_backward(net(torch.ones(2)).sum())
    assert prof.profile == before


def test_of_programs_they_are_heard_of_where_nothing_else_is() -> None:
    """Once one was seen: listening costs something at each node."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with followed(Fixed(bare(9))) as steps:
        for _ in range(7):
            run_backward(net(torch.ones(2)).sum())
            optimizer.step()
    assert steps.profile().phase_times_ns()["backward"] == 7 * 7 * MS


def test_nobody_listens_to_nodes_where_there_are_none_of_them() -> None:
    with followed(Fixed(bare(9))) as steps:
        train(Net(), 3)
        assert not steps.tracker.hears_unseen_passes
