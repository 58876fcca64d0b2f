"""All numbers of a row, to the nanosecond."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from tests.fake_clock import MS, burn
from tests.planted import Work
from torchprof_hooks import Profile, profile
from torchprof_hooks.capture.core import CORE
from torchprof_hooks.capture.core.span_log import FIELDS, FOLD_AT, SpanLog
from torchprof_hooks.profiles.totals import Totals

pytestmark = pytest.mark.usefixtures("clock")


def booked(found: Profile) -> dict[tuple[tuple[str, ...], str], tuple[int, int]]:
    """Calls and own milliseconds of each cell."""
    return {
        key: (totals.calls, totals.self_ns // MS)
        for key, totals in found.cells.items()
        if (totals.calls or totals.self_ns) and key[1] != "profiler"
    }


def numbers(totals: Totals) -> tuple[int, int, int, int, int]:
    return (
        totals.calls,
        totals.duration_ns,
        totals.min_ns,
        totals.max_ns,
        totals.squares_ns2,
    )


def test_calls_sums_extremes_and_squares() -> None:
    work = Work()
    model = nn.Sequential(work)
    with profile() as prof:
        for forward_ms, backward_ms in ((3, 5), (1, 8), (4, 2)):
            work.forward_ms, work.backward_ms = forward_ms, backward_ms
            model(torch.ones(3)).sum().backward()
    cells = prof.profile.cells
    for path in (("Sequential",), ("Sequential", "Sequential.0")):
        squares = (9 + 1 + 16) * MS**2
        assert numbers(cells[path, "forward"]) == (3, 8 * MS, MS, 4 * MS, squares)
        squares = (25 + 64 + 4) * MS**2
        assert numbers(cells[path, "backward"]) == (3, 15 * MS, 2 * MS, 8 * MS, squares)


class HookedOutput(nn.Module):
    """Has a hook on the tensor that it returns."""

    def __init__(self, forward_ms: int, hook_ms: int, backward_ms: int) -> None:
        super().__init__()
        self.work, self.hook_ms = Work(forward_ms, backward_ms), hook_ms

    def forward(self, x: torch.Tensor) -> Any:
        y = self.work(x)
        if self.hook_ms:
            y.register_hook(self.at_gradient)
        return y

    def at_gradient(self, gradient: torch.Tensor) -> None:
        burn(self.hook_ms)


@pytest.mark.skipif(CORE.module is None, reason="of the native core: see the limits")
def test_a_hook_on_a_tensor_is_time_of_the_module_that_made_it() -> None:
    """The engine calls it before the node runs, as what came before is over."""
    model = nn.Sequential(
        HookedOutput(1, 40, 2), HookedOutput(1, 0, 4), HookedOutput(1, 70, 8)
    )
    with profile() as prof:
        model(torch.ones(3, requires_grad=True)).sum().backward()
    found = {
        path[-1]: self_ms
        for (path, phase), (_, self_ms) in booked(prof.profile).items()
        if phase == "backward" and self_ms
    }
    assert found == {
        "Sequential.0.work": 42,
        "Sequential.1.work": 4,
        "Sequential.2.work": 78,
    }


class Outer(nn.Module):
    """Works between what it calls, in forward and in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Work(1, 2), Work(4, 8)
        self.own = [Work(16, 32)]  # called past its hooks: a part of this one

    def forward(self, x: torch.Tensor) -> Any:
        burn(64)
        x = self.first(x)
        x = self.own[0].forward(x)
        x = self.second(x)
        burn(128)
        return x


OUTER = {
    (("Outer",), "forward"): (1, 64 + 128 + 16),
    (("Outer", "Outer.first"), "forward"): (1, 1),
    (("Outer", "Outer.second"), "forward"): (1, 4),
}
OUTER_BACKWARD = {
    (("Outer",), "backward"): (1, 32),
    (("Outer", "Outer.first"), "backward"): (1, 2),
    (("Outer", "Outer.second"), "backward"): (1, 8),
}


def test_work_between_inner_calls_is_the_outer_ones() -> None:
    model = Outer()
    with profile() as prof:
        model(torch.ones(3)).sum().backward()
    found = prof.profile
    assert booked(found) == {
        **OUTER,
        **OUTER_BACKWARD,
        (("(backward outside modules)",), "backward"): (1, 0),
    }
    for phase, whole_ms in (("forward", 213), ("backward", 42)):
        node = next(n for _, n in found.tree().walk() if n.name == "Outer")
        phases: dict[Any, Totals] = dict(node.phases)
        assert phases[phase].cumulative_ns == whole_ms * MS


def test_a_checkpoint_gives_the_pass_its_time_back() -> None:
    model, head = Outer(), Work(256, 512)
    with profile() as prof:
        x = torch.ones(3, requires_grad=True)
        head(checkpoint(model, x, use_reentrant=False)).sum().backward()
    found = booked(prof.profile)
    again = {(path, "recompute"): cell for (path, _), cell in OUTER.items()}
    of_model = {key: cell for key, cell in found.items() if key[0][0] == "Outer"}
    # The recomputation ends early: all that was saved is there.
    assert of_model.pop((("Outer",), "recompute"))[1] in (64 + 16, 64 + 16 + 128)
    del again[("Outer",), "recompute"]
    assert of_model == {**OUTER, **again, **OUTER_BACKWARD}
    assert found[("Work",), "backward"] == (1, 512)


def test_what_interrupts_a_call_is_not_its_time() -> None:
    class Interrupted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Work(1, 2)
            self.optimizer = torch.optim.SGD(self.inner.parameters(), 0.0)

        def forward(self, x: torch.Tensor) -> Any:
            burn(16)
            for row in DataLoader(rows, batch_size=None):
                x = x + row
            self.inner(x).sum().backward()
            burn(32)
            self.optimizer.step(self.closure)
            seen.append(prof.profile)
            burn(64)
            return x

        def closure(self) -> float:
            burn(128)
            seen.append(prof.profile)
            return 0.0

    class Rows(list[torch.Tensor]):
        def __init__(self) -> None:
            super().__init__([torch.ones(3)] * 2)

        def __getitem__(self, index: Any) -> Any:
            burn(4)
            return super().__getitem__(index)

    rows: Any = Rows()
    seen: list[Profile] = []
    model = Interrupted()
    burn(1000)
    with profile() as prof:
        burn(256)
        model(torch.ones(3))
        burn(512)
    name, inner = "Interrupted", "Interrupted.inner"
    in_closure = {
        ((name, inner), "forward"): (1, 1),
        ((name,), "forward"): (0, 16 + 32),
        (("(data loading)",), "data"): (2, 2 * 4),
        ((name, inner), "backward"): (1, 2),
        ((name,), "backward"): (1, 0),
        (("(outside modules)",), "outside"): (0, 256 + 128),
    }
    after = {**in_closure, (("(optimizer) SGD",), "optimizer"): (1, 0)}
    whole = {
        **after,
        ((name,), "forward"): (1, 16 + 32 + 64),
        (("(outside modules)",), "outside"): (0, 256 + 128 + 512),
    }
    expected = [in_closure, after, whole]
    for found, known in zip([*seen, prof.profile], expected, strict=True):
        cells = booked(found)
        passes = ("(backward outside modules)",), "backward"
        assert cells.pop(passes, (1, 0)) == (1, 0)
        assert cells == known
        assert sum(ms for _, ms in cells.values()) * MS == found.wall_ns


def test_sums_go_on_when_the_log_is_folded() -> None:
    class Tick(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            burn(1)
            return x

    model, calls = nn.Sequential(Tick()), FOLD_AT // FIELDS
    with profile() as prof:
        for _ in range(calls):
            model(torch.ones(1))
        burn(5)
    assert booked(prof.profile) == {
        (("Sequential",), "forward"): (calls, 0),
        (("Sequential", "Sequential.0"), "forward"): (calls, calls),
        (("(outside modules)",), "outside"): (0, 5),
    }


# The log itself


def test_folding_adds_up() -> None:
    log = SpanLog()
    batches: list[list[list[int]]] = []
    log.on_fold = lambda spans: batches.append(spans.tolist())
    log.fold()  # nothing
    log.entries.extend((4, 10, 13, 1, 20, 25, 4, 30, 31))
    assert log.spans == 3
    log.fold()
    assert not log.entries
    assert log.spans == 3
    log.entries.extend((0, 40, 40, 4, 50, 60))
    assert log.spans == 5
    log.fold()
    assert log.spans == 5
    assert batches == [
        [[4, 10, 13], [1, 20, 25], [4, 30, 31]],
        [[0, 40, 40], [4, 50, 60]],
    ]
    assert log.calls.tolist() == [1, 1, 0, 0, 3]
    assert log.total_ns.tolist() == [0, 5, 0, 0, 14]
    assert log.min_ns[[0, 1, 4]].tolist() == [0, 5, 1]
    assert log.max_ns.tolist() == [0, 5, 0, 0, 10]
    assert log.squares == [0, 25, 0, 0, 9 + 1 + 100]
    assert log.first_ended == [4, 1, 0]


def test_folding_with_many_sites() -> None:
    log, code = SpanLog(), 1 << 16
    log.entries.extend((code, 1, 3, 0, 3, 4))
    log.fold()
    assert log.calls[[0, code]].tolist() == [1, 1]
    assert log.total_ns[[0, code]].tolist() == [1, 2]
    assert log.first_ended == [code, 0]
