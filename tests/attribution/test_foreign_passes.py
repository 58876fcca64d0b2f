"""Backward passes that are not started from Python: here, by TorchScript."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE
from tests.doing import Does, DoesInBackward, X
from tests.exact import found, own_in
from tests.fake_clock import burn
from tests.functions import raises
from tests.planted import Work
from torchprof_hooks import profile

pytestmark = [NATIVE_CORE, pytest.mark.usefixtures("clock")]


def started_by_script() -> Callable[[torch.Tensor], None]:
    def backward(loss: torch.Tensor) -> None:
        loss.backward()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is to be replaced
        return torch.jit.script(backward)


run_backward = started_by_script()


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(Work(1, 2), Work(3, 5))


def test_they_are_divided_among_modules() -> None:
    """Also among others, that Python starts."""
    net = Net()
    with profile() as prof:
        for start in (run_backward, torch.Tensor.backward, run_backward, run_backward):
            start(net(X).sum())
            burn(7)
    assert own_in(prof.profile, "backward") == {"Net.0": 4 * 2, "Net.1": 4 * 5}
    assert sum(own_in(prof.profile, "outside").values()) == 4 * 7


def test_one_inside_of_another_pass_is_a_part_of_it() -> None:
    inner, outer = Work(1, 2), Work(3, 5)

    @torch.enable_grad()
    def run() -> None:
        run_backward(inner(X).sum())

    with profile() as prof:
        outer(DoesInBackward.apply(outer(X), run)).sum().backward()
    assert own_in(prof.profile, "backward") == {"Work": 2 * 5, "Work#2": 2}


def test_one_inside_of_a_module_interrupts_it() -> None:
    inner = Work(1, 2)

    def work() -> None:
        burn(4)
        run_backward(inner(X).sum())
        burn(8)

    with profile() as prof:
        Does(work)(X)
    assert own_in(prof.profile, "forward") == {"Does": 12, "Does.<Work>": 1}
    assert sum(own_in(prof.profile, "backward").values()) == 2


def test_one_that_fails_is_over() -> None:
    net = Net()
    with profile() as prof:
        with pytest.raises(Exception, match="planned"):
            run_backward(DoesInBackward.apply(net(X), raises(ValueError)).sum())
        burn(7)
        run_backward(net(X).sum())
        net(X).sum().backward()
    assert own_in(prof.profile, "backward") == {"Net.0": 2 * 2, "Net.1": 2 * 5}
    assert sum(own_in(prof.profile, "outside").values()) >= 7


def test_functions_are_divided_too() -> None:
    with profile(functions=True) as prof:
        run_backward(Net()(X).sum())
    rows = found(prof.profile, "function")
    assert rows["_Burning", "backward"].own == 7


def test_of_more_threads_than_a_hand_has_fingers() -> None:
    """Each in a profile of its own, and all in their passes at once."""
    count = 12
    all_are_in = Barrier(count)

    class Last(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = DoesInBackward.apply(x, lambda: all_are_in.wait(60))
            return result

    def work(number: int) -> list[int]:
        start = run_backward if number % 2 else torch.Tensor.backward
        model = nn.Sequential(Last(), nn.Linear(3, 3), Last())
        with profile() as prof:
            start(model(torch.ones(3, requires_grad=True)).sum())
        cells = prof.profile.cells
        names = [f"Sequential.{part}" for part in range(3)]
        return [cells[("Sequential", name), "backward"].calls for name in names]

    with ThreadPoolExecutor(count) as pool:
        assert list(pool.map(work, range(count))) == [[1, 1, 1]] * count


def test_nobody_hears_after_the_end() -> None:
    net = Net()
    with profile() as prof:
        run_backward(net(X).sum())
    before = prof.profile
    run_backward(net(X).sum())
    assert prof.profile == before
