"""Blocks of code that reports show by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from torch import nn

from tests.fake_clock import MS, burn
from torchprof_hooks import LinkHook, Profile, profile, profile_function, region
from torchprof_hooks.kernel.subscriptions import KEPT_OUT

pytestmark = pytest.mark.usefixtures("clock")

X = torch.ones(2, 3)


class Busy(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        burn(2)
        return super().forward(x)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    burn(1)
    optimizer.zero_grad()
    model(X).sum().backward()
    optimizer.step()
    burn(4)


def in_region(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with region("train_step"):
        train_step(model, optimizer)


in_function = profile_function(train_step)


def trained(step: Callable[..., None], **options: Any) -> Profile:
    model = nn.Sequential(Busy(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with profile(**options) as prof:
        for _ in range(5):
            step(model, optimizer)
            burn(8)
    return prof.profile


def facts(found: Profile) -> dict[Any, tuple[int, int]]:
    return {key: (each.calls, each.self_ns) for key, each in found.cells.items()}


@pytest.mark.parametrize("functions", [False, True])
def test_a_region_is_booked_as_a_function(functions: bool) -> None:
    found = trained(in_region, functions=functions)
    assert facts(found) == facts(trained(in_function, functions=functions))
    block = found.cells[("train_step",), "forward"]
    assert (block.calls, block.self_ns) == (5, 5 * 5 * MS)
    assert {path[0] for path, phase in found.cells if phase == "forward"} == {
        "train_step"
    }
    assert found.cells[("train_step", "(optimizer) SGD"), "optimizer"].calls == 5
    (row,) = [row for row in found.rows() if row.name == "Sequential.0"]
    assert row.phases["forward"].calls == row.phases["backward"].calls == 5
    assert found.modules["train_step"].place.startswith("made at test_region.py:")


def test_blocks_of_one_name_are_one_row_and_nest() -> None:
    with profile() as prof:
        for _ in range(2):
            with region("outer"):
                burn(1)
                with region("inner"), region("inner"):
                    burn(2)
        with region("outer"):
            burn(4)
    rows = {row.name: row for row in prof.profile.rows()}
    assert rows["outer"].calls == 3
    assert rows["outer"].self_ns == 6 * MS
    assert rows["inner"].calls == 4
    assert rows["inner"].cumulative_ns == 4 * MS


def test_an_exception_ends_a_region() -> None:
    with profile() as prof:
        with suppress(KeyError), region("failing"):
            burn(1)
            raise KeyError
        burn(2)
    found = prof.profile
    assert found.aborted_calls == 1
    assert found.cells[("failing",), "forward"].self_ns == 1 * MS
    assert found.wall_ns == 3 * MS


class Interrupted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        burn(1)
        raise KeyboardInterrupt


@contextmanager
def inside() -> Iterator[None]:
    with region("block"):
        yield


def test_a_region_goes_on_after_a_call_in_it_was_interrupted() -> None:
    model = Busy(3, 1)
    with profile() as prof:
        with inside():  # whose frame is not on the stack
            with pytest.raises(KeyboardInterrupt):
                Interrupted()(X)
            model(X)
            burn(4)
        burn(8)
    cells = prof.profile.cells
    assert cells[("block",), "forward"].self_ns == 4 * MS
    assert cells[("block", "Busy"), "forward"].self_ns == 2 * MS
    assert cells[("(outside modules)",), "outside"].self_ns == 8 * MS


def test_a_region_has_its_own_name_in_all_modules() -> None:
    """Not that of the module in which it began first."""

    class Masked(nn.Module):
        def __init__(self, ms: float) -> None:
            super().__init__()
            self.ms = ms

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with region("mask"):
                burn(self.ms)
            return x

    with profile() as prof:
        nn.Sequential(Masked(1), Masked(10))(X)
    cells = {path: each.self_ns for (path, _), each in prof.profile.cells.items()}
    model = "Sequential"
    assert cells[model, f"{model}.0", "mask"] == 1 * MS
    assert cells[model, f"{model}.1", "mask"] == 10 * MS
    assert "mask" in {row.name for row in prof.profile.rows()}


def test_functions_of_instances_share_a_row() -> None:
    class Block(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 3)
            self.attend = profile_function(super().forward, "attend")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attend(x)

    with profile() as prof:
        nn.Sequential(Block(), Block(), Block())(X)
    calls = {row.name: row.calls for row in prof.profile.rows()}
    assert calls["attend"] == 3
    assert "attend#2" not in calls


def test_names_of_regions_may_have_dots() -> None:
    with profile() as prof:
        for name in ("load", "load.decode"):
            with region(name):
                burn(1)
    assert prof.report().startswith("torchprof_hooks: load, load.decode, 2.00ms")


def test_hooks_are_told_of_regions_without_the_keywords_of_others() -> None:
    told = []

    class Hook(LinkHook):
        name = "told"

        def forward_preprocess(self, args: Any) -> None:
            told.append((args.path, args.kwargs))

    class Net(nn.Module):
        def forward(self, *, x: torch.Tensor) -> torch.Tensor:
            with region("part"):
                return x + 1

    with Hook():
        Net()(x=X)
    assert [path for path, _ in told] == ["Net", "part"]
    assert [list(kwargs) for _, kwargs in told] == [["x"], []]


def test_tasks_that_are_in_regions_at_the_same_time_are_refused() -> None:
    async def task(name: str) -> None:
        with region(name):
            burn(1)
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(task("one"), task("other"))

    with (
        profile() as prof,
        pytest.raises(
            RuntimeError, match=r"'other'.*'one'.*must not contain an `await"
        ),
    ):
        asyncio.run(both())
    rows = {row.name: row for row in prof.profile.rows()}
    assert rows["one"].self_ns == 1 * MS
    assert "other" not in rows


def test_regions_of_generators_that_overlap_are_refused() -> None:
    def generator(name: str) -> Iterator[None]:
        with region(name):
            burn(1)
            yield

    one, other, after = map(generator, ("one", "other", "after"))
    with profile() as prof:
        next(one)
        next(other)
        with pytest.raises(
            RuntimeError, match=r"'one'.*'other'.*must not contain a `yield"
        ):
            next(one)
        assert not [*other]  # one refusal is enough
        burn(2)
        assert len([*after]) == 1
    cells = prof.profile.cells
    assert cells[("(outside modules)",), "outside"].self_ns == 2 * MS
    assert cells[("after",), "forward"].self_ns == 1 * MS


def test_a_region_where_another_tool_answers_what_torch_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has a property at the place where ours would be: the report says so."""
    monkeypatch.setattr(nn.Module, "_compiled_call_impl", property(lambda module: None))
    with region("unmeasured"):
        pass
    with profile() as prof, region("measured"):
        nn.Linear(2, 2)(torch.ones(2))
    assert not [row for row in prof.profile.rows() if row.kind == "module"]
    assert KEPT_OUT in prof.profile.not_measured
