"""Time spent waiting for a DataLoader is a row of its own, and nothing else changes."""

from __future__ import annotations

import gc
import json
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, dataloader

from tests.cores import NATIVE_CORE
from tests.fake_clock import MS, burn
from tests.functions import raises
from tests.planted import Work
from torchprof_hooks import Profile, ProfilerHook, profile
from torchprof_hooks.profiler import Profiler
from torchprof_hooks.profiles.names import GROUPINGS
from torchprof_hooks.profiles.rows import Row

BaseIterator: Any = dataloader._BaseDataLoaderIter

pytestmark = [
    pytest.mark.usefixtures("clock"),
    # Forking a process with threads, as torch's workers do, is deprecated from 3.12 on.
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]


class Slow(Dataset[torch.Tensor]):
    """Rows of 3 numbers that take their time, 2 ms each; `at` some, something is done
    besides."""

    def __init__(self, size: int, **at: Callable[[], object]) -> None:
        self.size = size
        self.at = at

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        burn(2)
        self.at.get(f"row{index}", int)()
        return torch.full((3,), float(index))


def row_of(prof: Profiler | Profile, name: str = "(data loading)") -> Row:
    found = prof if isinstance(prof, Profile) else prof.profile
    return next(row for row in found.rows() if row.name == name)


def check(found: Profile, batches: int, loading_ms: float) -> None:
    """So many batches were waited for so long, and what is known of the whole adds
    up."""
    row = row_of(found)
    assert (row.calls, row.self_ns) == (batches, loading_ms * MS)
    assert (row.kind, row.class_name, row.cumulative_ns) == ("data", "", row.self_ns)
    assert sum(totals.calls for totals in row.phases.values()) == batches
    for by in GROUPINGS:
        assert sum(row.self_ns for row in found.rows(by)) == found.wall_ns


def train(model: nn.Module, batches: Iterable[torch.Tensor]) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for batch in batches:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# What is measured


class SlowToBegin(list[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        burn(20)
        return super().__iter__()


class SlowToEnd(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        for index in range(3):
            burn(2)
            yield index
        burn(20)


class Nested(Dataset[torch.Tensor]):
    """Loads from another loader."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.cat(list(DataLoader(Slow(4), batch_size=2)))


class AddsOne(dataloader._SingleProcessDataLoaderIter):
    def __next__(self) -> Any:
        return super().__next__() + 1


class OfAnotherLibrary(DataLoader[torch.Tensor]):
    """Has an iterator of its own, and a generator around it."""

    def _get_iterator(self) -> Any:
        return AddsOne(self)

    def __iter__(self) -> Any:
        batches = super().__iter__()
        while True:
            try:
                yield next(batches)
            except StopIteration:
                return


#: How many batches a loader has, how long all of these take, and what else is waited
#: for, in milliseconds.
LOADERS: dict[str, tuple[Callable[[], DataLoader[Any]], int, float, float]] = {
    "batches": (lambda: DataLoader(Slow(8), 2), 4, 16, 0),
    "slow to begin": (
        lambda: DataLoader(Slow(3), batch_sampler=SlowToBegin([[0, 1], [2]])),
        *(2, 6, 20),
    ),
    "slow to say that there is no more": (
        lambda: DataLoader(SlowToEnd(), None),
        *(3, 6, 20),
    ),
    "a loader inside of a loader": (lambda: DataLoader(Nested(), None), 3, 24, 0),
    "of another library": (lambda: OfAnotherLibrary(Slow(4), 2), 2, 8, 0),
}


@pytest.mark.parametrize("options", [{}, {"functions": True, "memory": True}], ids=len)
@pytest.mark.parametrize("name", LOADERS)
def test_waiting_for_batches_is_a_row(name: str, options: Any) -> None:
    make, batches, batches_ms, others_ms = LOADERS[name]
    expected, loader, model = list(make()), make(), Work(4)
    with profile(**options) as prof:
        iterator = iter(loader)
        begun = prof.profile
        loaded = []
        for batch in iterator:
            loaded.append(batch)
            with torch.no_grad():
                model(torch.ones(3))
            burn(3)
    found = prof.profile
    assert str(loaded) == str(expected)
    check(found, batches, batches_ms + others_ms)
    totals = row_of(found).phases["data"]
    assert totals.duration_ns == batches_ms * MS
    if name == "slow to begin":
        assert row_of(begun).calls == 0
        assert (totals.min_ns, totals.max_ns) == (2 * MS, 4 * MS)
    assert row_of(found, "Work").cumulative_ns == batches * 4 * MS
    assert row_of(found, "(outside modules)").self_ns == batches * 3 * MS
    assert found.aborted_calls == 0
    assert "(data loading)" in found.report(full=True)


@pytest.mark.parametrize("persistent", [False, True])
def test_workers(persistent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Iterating(dataloader._MultiProcessingDataLoaderIter):
        def _next_data(self) -> Any:
            burn(5)  # waiting: what workers burn is not seen in this process
            return super()._next_data()

    monkeypatch.setattr(dataloader, "_MultiProcessingDataLoaderIter", Iterating)
    loader = DataLoader(Slow(8), 2, num_workers=1, persistent_workers=persistent)
    with profile() as prof:
        batches = [batch for _ in range(2) for batch in loader]
        burn(1)
    assert torch.cat(batches)[:, 0].tolist() == 2 * [*map(float, range(8))]
    # The last one says that it was the last.
    check(prof.profile, 8, 2 * (4 + 1) * 5)
    assert len(prof.profile.rows()) == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_a_worker_leaves_the_profile_alone(workers: int) -> None:
    class Outer(Dataset[list[int]]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> list[int]:
            return list(DataLoader(range(index), batch_size=None))  # type: ignore[arg-type]

    with profile() as prof:
        loaded = list(DataLoader(Outer(), batch_size=None, num_workers=workers))
    assert loaded == [[], [0], [0, 1], [0, 1, 2]]
    assert row_of(prof).calls == 4


@NATIVE_CORE
def test_functions_called_by_a_loader_are_a_part_of_loading() -> None:
    with profile(functions=True, memory=True) as prof:
        for batch in DataLoader(Slow(4), batch_size=2):
            torch.relu(batch)
    found = prof.profile
    check(found, 2, 4 * 2)
    functions = {row.name: row for row in found.rows("function")}
    assert functions["stack"].calls == functions["stack"].phases["data"].calls == 2
    assert functions["relu"].phases["forward"].calls == 2
    children = {node.name: node for node in found.tree(functions=True).children}
    loading = children["(data loading)"]
    assert {"stack(2 * 3)", "stack(3, 3)"} & {node.name for node in loading.children}
    assert loading.cumulative_ns == row_of(found).self_ns
    assert " data " in found.report(full=True)  # the column of its memory


def test_a_trace_shows_loading(tmp_path: Any) -> None:
    with ProfilerHook(1, output_dir=tmp_path) as hook:
        for _ in DataLoader(Slow(3)):
            hook.step()
    events = json.loads(hook.paths[-1].read_text())["traceEvents"]
    found = [event["name"] for event in events if event.get("cat") == "data"]
    assert found == ["(data loading)"]


# Loops that do not end in order


@pytest.mark.parametrize("functions", [False, True])
def test_the_traceback_is_the_users(functions: bool) -> None:
    def frames() -> list[str]:
        with pytest.raises(ValueError, match="planned") as caught:
            list(DataLoader(Slow(1, row0=raises(ValueError))))
        assert caught.value.__context__ is None
        stack = traceback.extract_tb(caught.value.__traceback__)
        return [frame.name for frame in stack]

    bare = frames()
    with profile(), profile(functions=functions):
        measured = frames()
    if sys.version_info < (3, 11):
        measured.remove("load_measured")
    assert measured == bare


def test_breaking_off_and_beginning_again() -> None:
    loader = DataLoader(Slow(4))
    with profile() as prof:
        for _ in range(3):
            for _ in loader:
                break
        gc.collect()
        burn(10)
    assert row_of(prof).calls == 3
    assert row_of(prof, "(outside modules)").self_ns == 10 * MS


def test_measuring_may_begin_and_end_in_the_middle_of_a_loop() -> None:
    prof = profile()
    data = Slow(6, row1=prof.__enter__, row4=lambda: prof.__exit__(None, None, None))
    loaded = torch.cat(list(DataLoader(data)))
    assert loaded[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    # Of three calls the last was not over. Who leaves in the middle of a call says
    # nothing of what it did since it began.
    check(prof.profile, 3, 2 * 2)
    assert row_of(prof, "(outside modules)").self_ns == 2 * MS


# Nothing of it is to be seen


@pytest.mark.parametrize("workers", [0, 2])
def test_results_are_the_same(workers: int) -> None:
    def run() -> list[Any]:
        torch.manual_seed(0)
        loader = DataLoader(Slow(8), shuffle=True, num_workers=workers)
        return [*train(nn.Linear(3, 3), loader), *torch.rand(3).tolist()]

    bare = run()
    with profile(functions=True), profile():
        assert run() == bare


def test_a_loader_can_be_pickled_meanwhile() -> None:
    loader = DataLoader(Slow(4), batch_size=2)
    bare, name = pickle.dumps(loader), BaseIterator.__next__.__qualname__
    with profile():
        assert pickle.dumps(loader) == bare
        assert len(list(pickle.loads(bare))) == 2
        assert BaseIterator.__next__.__qualname__ == name


@pytest.fixture
def compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_compiled_model_is_not_compiled_again() -> None:
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    model: Any = torch.compile(nn.Linear(3, 3), backend=backend, fullgraph=True)
    with profile() as prof:
        train(model, DataLoader(Slow(6), batch_size=2))
    assert len(compiled) == 1
    assert row_of(prof).calls == 3


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_loop_inside_of_a_compiled_function() -> None:
    @torch.compile(backend="eager")
    def add_up(batches: Iterable[torch.Tensor], result: torch.Tensor) -> torch.Tensor:
        for batch in batches:
            result = result + batch.sin().sum()
        return result

    rows: Any = torch.rand(4, 3)
    bare = add_up(DataLoader(rows), torch.zeros(3))
    with profile(functions=True), profile():
        torch.compiler.reset()  # which forgets whom it tells of compilations
        assert torch.equal(add_up(DataLoader(rows), torch.zeros(3)), bare)
