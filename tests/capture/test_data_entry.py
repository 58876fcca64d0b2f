"""Time spent waiting for a DataLoader is a row of its own, and nothing else changes."""

from __future__ import annotations

import gc
import json
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, dataloader

import torchprof_hooks
from tests.cores import numbers_in_log
from tests.fake_clock import MS, burn
from tests.planted import Work
from torchprof_hooks import Profile, ProfilerHook
from torchprof_hooks.capture.attach import loaders
from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.loaders import loader_patches
from torchprof_hooks.capture.core.span_log import FOLD_AT
from torchprof_hooks.capture.tracking.make_tracker import new_tracker
from torchprof_hooks.link_hooks import TimerHook
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import GROUPINGS
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.totals import Totals

BaseIterator: Any = dataloader._BaseDataLoaderIter

pytestmark = [
    pytest.mark.usefixtures("clock"),
    # Forking a process with threads, as torch's workers do, is deprecated from 3.12 on.
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]

ERRORS = [ValueError, KeyboardInterrupt, GeneratorExit]


class Slow(Dataset[torch.Tensor]):
    """Rows of 3 numbers that take their time."""

    def __init__(self, size: int = 8, milliseconds: float = 2.0) -> None:
        self.size = size
        self.milliseconds = milliseconds
        self.at: dict[int, Callable[[], object]] = {}

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        burn(self.milliseconds)
        self.at.get(index, int)()
        return torch.full((3,), float(index))


def data_row(profile: Profile) -> Row:
    return next(row for row in profile.rows() if row.kind == "data")


def data_totals(profile: Profile) -> Totals:
    return data_row(profile).phases["data"]


def own_ns(profile: ProfileData) -> dict[str, int]:
    return {row.name: row.self_ns for row in profile.rows()}


def check(profile: Profile, loading_ns: int) -> None:
    """Loading took so long, and what is known of the whole adds up."""
    for by in GROUPINGS:
        assert sum(row.self_ns for row in profile.rows(by)) == profile.wall_ns
    assert data_row(profile).self_ns == loading_ns


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


def test_waiting_for_batches_is_a_row() -> None:
    model = Work(4)
    with torchprof_hooks.profile() as prof:
        for batch in DataLoader(Slow(8), batch_size=2):
            model(batch)
            burn(3)
    profile = prof.profile
    check(profile, 8 * 2 * MS)
    row = data_row(profile)
    assert (row.name, row.calls, row.class_name) == ("(data loading)", 4, "")
    assert row.cumulative_ns == row.self_ns
    assert own_ns(profile)["(outside modules)"] == 4 * 3 * MS
    assert profile.attributed_ns == own_ns(profile)["Work"] == 4 * 4 * MS
    assert "(data loading)" in profile.report(full=True)


def test_making_the_iterator_takes_time_but_is_no_batch() -> None:
    class SlowToBegin(list[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            burn(20)
            return super().__iter__()

    loader = DataLoader(Slow(3, 1.0), batch_sampler=SlowToBegin([[0, 1], [2]]))
    with torchprof_hooks.profile() as prof:
        iterator = iter(loader)
        assert data_row(prof.profile).calls == 0
        for _ in iterator:
            pass
    check(prof.profile, (20 + 3) * MS)
    totals = data_totals(prof.profile)
    assert totals.calls == 2
    assert (totals.min_ns, totals.max_ns) == (MS, 2 * MS)
    assert totals.duration_ns == 3 * MS


def test_finding_out_that_there_is_no_more_takes_time_but_is_no_batch() -> None:
    class SlowToEnd(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            for index in range(3):
                burn(2)
                yield index
            burn(20)

    with torchprof_hooks.profile(functions=True, memory=True) as prof:
        assert len(list(DataLoader(SlowToEnd(), batch_size=None))) == 3
    check(prof.profile, (3 * 2 + 20) * MS)
    totals = data_totals(prof.profile)
    assert (totals.calls, totals.duration_ns) == (3, 3 * 2 * MS)
    assert prof.profile.aborted_calls == 0


@pytest.mark.parametrize("persistent", [False, True])
def test_workers(persistent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Iterating(dataloader._MultiProcessingDataLoaderIter):
        def _next_data(self) -> Any:
            burn(5)  # waiting: what workers burn is not seen in this process
            return super()._next_data()

    monkeypatch.setattr(dataloader, "_MultiProcessingDataLoaderIter", Iterating)
    loader = DataLoader(
        Slow(8), batch_size=2, num_workers=2, persistent_workers=persistent
    )
    with torchprof_hooks.profile() as prof:
        batches = [batch for _ in range(2) for batch in loader]
        burn(1)
    row = data_row(prof.profile)
    assert torch.cat(batches)[:, 0].tolist() == 2 * [*map(float, range(8))]
    assert row.calls == 8
    check(prof.profile, 2 * (4 + 1) * 5 * MS)  # the last one says that it was the last
    assert len(prof.profile.rows()) == 2


def test_a_loader_inside_of_a_loader_is_a_part_of_it() -> None:
    class Outer(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.cat(list(DataLoader(inner, batch_size=2)))

    inner = Slow(4)
    with torchprof_hooks.profile(functions=True) as prof:
        assert len(list(DataLoader(Outer(), batch_size=None))) == 3
    check(prof.profile, 3 * 4 * 2 * MS)
    assert data_row(prof.profile).calls == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_worker_leaves_the_profile_alone(workers: int) -> None:
    class Outer(Dataset[list[int]]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> list[int]:
            return list(DataLoader(range(index), batch_size=None))  # type: ignore[arg-type]

    with torchprof_hooks.profile() as prof:
        loaded = list(DataLoader(Outer(), batch_size=None, num_workers=workers))
    assert loaded == [[], [0], [0, 1], [0, 1, 2]]
    assert data_row(prof.profile).calls == 4


def test_a_module_called_by_a_loader_is_a_part_of_loading() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> Any:
            burn(5)
            return self.linear(x)

    encode, head = Encoder(), nn.Linear(3, 1)
    with torchprof_hooks.profile() as prof:
        for batch in DataLoader(
            Slow(4), batch_size=2, collate_fn=lambda rows: encode(torch.stack(rows))
        ):
            head(batch).sum().backward()
    profile = prof.profile
    check(profile, 4 * 2 * MS + 2 * 5 * MS)
    rows = {row.name: row for row in profile.rows()}
    assert [name for name in rows if not name.startswith("(")] == ["Linear"]
    calls = {phase: totals.calls for phase, totals in rows["Linear"].phases.items()}
    assert (calls["forward"], calls["backward"]) == (2, 2)


def test_functions_called_by_a_loader_are_a_part_of_loading() -> None:
    with torchprof_hooks.profile(functions=True, memory=True) as prof:
        for batch in DataLoader(Slow(4), batch_size=2):
            torch.relu(batch)
    profile = prof.profile
    check(profile, 4 * 2 * MS)
    functions = {row.name: row for row in profile.rows("function")}
    assert functions["stack"].calls == 2
    assert functions["stack"].phases["data"].calls == 2
    assert functions["relu"].phases["forward"].calls == 2
    (loading,) = [
        node
        for node in profile.tree(functions=True).children
        if node.name == "(data loading)"
    ]
    assert "stack(2 * 3)" in str([node.name for node in loading.children]) or (
        "stack(3, 3)" in str([node.name for node in loading.children])
    )
    assert loading.cumulative_ns == data_row(profile).self_ns
    assert " data " in profile.report(full=True)  # the column of its memory


def test_a_loader_inside_of_a_forward_interrupts_it() -> None:
    class Reads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for batch in DataLoader(data, batch_size=2):
                burn(3)
                x = x + batch.sum()
            return x

    data, model = Slow(4, 5.0), Reads()
    with torchprof_hooks.profile() as prof:
        model(torch.ones(3, requires_grad=True)).sum().backward()
    check(prof.profile, 4 * 5 * MS)
    (row,) = [row for row in prof.profile.rows() if row.kind == "module"]
    assert row.self_ns == 2 * 3 * MS
    assert row.phases["backward"].calls == 1


def test_batches_that_carry_a_graph_find_their_owners() -> None:
    weight = torch.ones(3, requires_grad=True)
    count = 128
    with torchprof_hooks.profile(functions=True) as prof:
        batches = DataLoader(
            Slow(count, 0.0), collate_fn=lambda rows: torch.stack(rows).mul(weight)
        )
        for batch in list(batches):
            batch.sum().backward()
    rows = {row.name: row for row in prof.profile.rows("function")}
    assert rows["mul"].phases["backward"].calls == count


def test_iterators_of_other_libraries() -> None:
    class Iterator_(dataloader._SingleProcessDataLoaderIter):
        def __next__(self) -> Any:
            return super().__next__() + 1

    class Loader(DataLoader[torch.Tensor]):
        def _get_iterator(self) -> Any:
            return Iterator_(self)

        def __iter__(self) -> Any:
            batches = super().__iter__()
            while True:
                try:
                    yield next(batches)
                except StopIteration:
                    return

    with torchprof_hooks.profile() as prof:
        batches = list(Loader(Slow(4), batch_size=2))
    assert torch.cat(batches)[:, 0].tolist() == [1, 2, 3, 4]
    assert data_row(prof.profile).calls == 2


def test_hooks_on_modules_show_no_loading() -> None:
    model = nn.Linear(3, 3)
    with TimerHook(backward=True) as timer:
        train(model, DataLoader(Slow(4, 0.0)))
    assert list(timer.summary()) == ["Linear"]


def test_a_trace_shows_loading(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    with ProfilerHook(1, output_dir=tmp_path) as hook:
        for batch in DataLoader(Slow(3, 0.0)):
            model(batch)
            hook.step()
    events = json.loads(hook.paths[-1].read_text())["traceEvents"]
    (loading,) = [event for event in events if event.get("cat") == "data"]
    assert loading["name"] == "(data loading)"


def test_the_log_does_not_grow_with_the_number_of_batches() -> None:
    tracker = new_tracker()
    for patch in loader_patches:
        attachments.attach(patch, tracker)
    try:
        for _ in DataLoader(range(FOLD_AT), batch_size=None):  # type: ignore[arg-type]
            pass
        assert numbers_in_log(tracker) <= FOLD_AT + 3
        assert len(tracker.sites) == 3
    finally:
        for patch in loader_patches:
            attachments.detach(patch, tracker)


# Loops that do not end in order


@pytest.mark.parametrize("error", ERRORS)
def test_an_exception_of_the_data_set(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error("planted")

    model, data = nn.Linear(3, 3), Slow(4)
    data.at[2] = fail
    with torchprof_hooks.profile() as prof:
        with pytest.raises(error, match="planted"):
            train(model, DataLoader(data))
        burn(20)
        train(model, DataLoader(data, sampler=[0, 1]))
    profile = prof.profile
    row = data_row(profile)
    assert (row.calls, profile.aborted_calls) == (5, 1)
    assert own_ns(profile)["(outside modules)"] == 20 * MS
    assert {row.name: row.calls for row in profile.rows()}["Linear"] == 4
    assert sum(row.self_ns for row in profile.rows()) == profile.wall_ns


@pytest.mark.parametrize("functions", [False, True])
def test_the_traceback_is_the_users(functions: bool) -> None:
    def fail() -> None:
        raise ValueError("planted")

    def frames() -> list[str]:
        with pytest.raises(ValueError, match="planted") as caught:
            list(DataLoader(data))
        assert caught.value.__context__ is None
        return [
            frame.name for frame in traceback.extract_tb(caught.value.__traceback__)
        ]

    data = Slow(1)
    data.at[0] = fail
    bare = frames()
    with torchprof_hooks.profile(), torchprof_hooks.profile(functions=functions):
        measured = frames()
    if sys.version_info < (3, 11):
        measured.remove("load_measured")
    assert measured == bare


def test_breaking_off_and_beginning_again() -> None:
    loader = DataLoader(Slow(4))
    with torchprof_hooks.profile() as prof:
        for _ in range(3):
            for _ in loader:
                break
        gc.collect()
        burn(10)
    assert data_row(prof.profile).calls == 3
    assert own_ns(prof.profile)["(outside modules)"] == 10 * MS


def test_measuring_may_begin_and_end_in_the_middle_of_a_loop() -> None:
    data = Slow(6)
    prof = torchprof_hooks.profile()
    data.at = {1: prof.__enter__, 4: lambda: prof.__exit__(None, None, None)}
    loaded = torch.cat(list(DataLoader(data)))
    assert loaded[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    row = data_row(prof.profile)
    assert row.calls == 3  # of which the last was not over
    # Who leaves in the middle of a call says nothing of what it did since it began.
    check(prof.profile, 2 * 2 * MS)
    assert own_ns(prof.profile)["(outside modules)"] == 2 * MS


def test_loading_that_an_interrupt_kept_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(3, 3)
    with torchprof_hooks.profile() as prof:
        with monkeypatch.context() as patch:

            def interrupted(*_: Any) -> None:
                raise KeyboardInterrupt

            patch.setattr(loaders, "end_loading", interrupted)
            with pytest.raises(KeyboardInterrupt):
                train(model, DataLoader(Slow(2)))
        burn(20)
        train(model, DataLoader(Slow(2)))
    assert prof.profile.aborted_calls == 1
    assert {row.name: row.calls for row in prof.profile.rows()}["Linear"] == 2
    assert own_ns(prof.profile)["(outside modules)"] == 20 * MS
    assert prof.profile.tree().children[0].name == "Linear"


def test_reading_in_the_middle_of_a_batch() -> None:
    data = Slow(2, 5.0)
    seen: list[Profile] = []
    with torchprof_hooks.profile() as prof:
        data.at[1] = lambda: seen.append(prof.profile)
        list(DataLoader(data))
    totals = data_totals(seen[0])
    assert totals.calls == 1
    check(seen[0], 2 * 5 * MS)


# Nothing of it is to be seen


def test_every_thread_has_its_own() -> None:
    def measured(size: int) -> None:
        with torchprof_hooks.profile() as prof:
            list(DataLoader(Slow(size)))
        profiles[size] = prof.profile

    profiles: dict[int, Profile] = {}
    threads = [threading.Thread(target=measured, args=(size,)) for size in (3, 5)]
    threads.append(threading.Thread(target=lambda: list(DataLoader(Slow(7)))))
    with torchprof_hooks.profile() as prof:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {size: data_row(p).calls for size, p in profiles.items()} == {3: 3, 5: 5}
    assert [row.name for row in prof.profile.rows()] == ["(outside modules)"]


def test_results_are_the_same() -> None:
    def run(workers: int) -> tuple[list[Any], torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        loader = DataLoader(Slow(8, 0.0), shuffle=True, num_workers=workers)
        return train(model, loader), torch.rand(3)

    for workers in (0, 2):
        bare, numbers = run(workers)
        with torchprof_hooks.profile(functions=True), torchprof_hooks.profile():
            measured, numbers_then = run(workers)
        assert measured == bare
        assert torch.equal(numbers, numbers_then)


def test_nothing_is_left_behind() -> None:
    make, ask = vars(DataLoader)["__iter__"], vars(BaseIterator)["__next__"]
    with torchprof_hooks.profile():
        assert vars(DataLoader)["__iter__"] is not make
        with torchprof_hooks.profile():
            pass
        assert vars(BaseIterator)["__next__"] is not ask
        assert BaseIterator.__next__.__qualname__ == ask.__qualname__
    assert vars(DataLoader)["__iter__"] is make
    assert vars(BaseIterator)["__next__"] is ask


def test_trackers_that_die_are_forgotten() -> None:
    ask = vars(BaseIterator)["__next__"]
    for patch in loader_patches:
        attachments.attach(patch, new_tracker())
    gc.collect()
    assert vars(BaseIterator)["__next__"] is ask


def test_somebody_else_replaces_the_method_after_us() -> None:
    ask = vars(BaseIterator)["__next__"]
    with torchprof_hooks.profile():
        ours = vars(BaseIterator)["__next__"]

        def theirs(iterator: Any) -> Any:
            nn.Identity()(1)  # a module that was not called before
            return ours(iterator)

        BaseIterator.__next__ = theirs
    try:
        assert vars(BaseIterator)["__next__"] is theirs
        with torchprof_hooks.profile() as prof:
            assert len(list(DataLoader(Slow(3)))) == 3
        assert data_row(prof.profile).calls == 3
        assert prof.profile.aborted_calls == 0
        assert vars(BaseIterator)["__next__"] is theirs
    finally:
        BaseIterator.__next__ = ask


def test_a_loader_can_be_pickled_meanwhile() -> None:
    loader = DataLoader(Slow(4), batch_size=2)
    bare = pickle.dumps(loader)
    with torchprof_hooks.profile():
        assert pickle.dumps(loader) == bare
        assert len(list(pickle.loads(bare))) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_compiled_model_is_not_compiled_again() -> None:
    torch.compiler.reset()
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    model: Any = torch.compile(nn.Linear(3, 3), backend=backend, fullgraph=True)
    with torchprof_hooks.profile() as prof:
        train(model, DataLoader(Slow(6), batch_size=2))
    assert len(compiled) == 1
    assert data_row(prof.profile).calls == 3
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_loop_inside_of_a_compiled_function() -> None:
    def total() -> Any:
        torch.compiler.reset()
        compiled = torch.compile(add_up, backend="eager")
        return compiled(DataLoader(rows), torch.zeros(3))

    def add_up(batches: Iterable[torch.Tensor], result: torch.Tensor) -> torch.Tensor:
        for batch in batches:
            result = result + batch.sin().sum()
        return result

    rows: Any = torch.rand(4, 3)
    bare = total()
    with torchprof_hooks.profile(functions=True), torchprof_hooks.profile():
        assert torch.equal(total(), bare)
    torch.compiler.reset()
