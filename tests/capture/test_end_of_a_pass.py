"""What the engine is asked to do after the last node of a pass is nobody's backward."""

from __future__ import annotations

import torch
from torch import nn

from tests.doing import at_the_end
from tests.fake_clock import MS, FakeClock, burn
from tests.planted import Work
from torchprof_hooks import Profile, profile

X = torch.ones(4, 4)


def late_work() -> None:
    burn(50)


def own_ms(found: Profile) -> dict[tuple[str, str], float]:
    return {
        (path[-1], phase): totals.self_ns / MS
        for (path, phase), totals in found.cells.items()
        if totals.self_ns
    }


def test_it_is_not_the_first_layers(clock: FakeClock) -> None:
    net = nn.Sequential(Work(1, 2), Work(3, 4))
    with profile() as prof:
        x = X.clone().requires_grad_()
        at_the_end(x, late_work)
        net(x).sum().backward()
    assert own_ms(prof.profile) == {
        ("Sequential.0", "forward"): 1,
        ("Sequential.0", "backward"): 2,
        ("Sequential.1", "forward"): 3,
        ("Sequential.1", "backward"): 4,
        ("(autograd engine)", "backward"): 50,
    }
    assert prof.profile.aborted_calls == 0


def test_a_pass_in_it_is_booked_once(clock: FakeClock) -> None:
    net, other = nn.Sequential(Work(1, 2), Work(3, 4)), Work(1, 20)

    def late_pass() -> None:
        burn(10)
        with torch.enable_grad():
            other(X.clone().requires_grad_()).sum().backward()
        burn(10)

    with profile() as prof:
        for _ in range(2):
            x = X.clone().requires_grad_()
            at_the_end(x, late_pass)
            net(x).sum().backward()
    assert own_ms(prof.profile) == {
        ("Sequential.0", "forward"): 2,
        ("Sequential.0", "backward"): 4,
        ("Sequential.1", "forward"): 6,
        ("Sequential.1", "backward"): 8,
        ("Work", "recompute"): 2,
        ("Work", "backward"): 40,
        ("(autograd engine)", "backward"): 40,
    }
