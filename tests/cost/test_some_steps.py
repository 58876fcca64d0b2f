"""Where only some steps are measured: these are told exactly, and in the others nothing
of ours is on torch but what counts them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE
from tests.cost.loops import (
    STEP_MS,
    Net,
    X,
    calls,
    check_sums,
    followed,
    infer,
    registered,
    sgd,
    train,
)
from tests.doing import Does
from tests.fake_clock import MS, burn
from tests.helpers import in_thread
from tests.planted import Work
from torchprof_hooks import Profiler, profile
from torchprof_hooks.documents import report as report_module
from torchprof_hooks.documents.build import blocks
from torchprof_hooks.documents.export import scalars as scalars_module
from torchprof_hooks.kernel.ended_steps import EndedSteps
from torchprof_hooks.kernel.passes import PassRequest
from torchprof_hooks.kernel.step_listeners import CountedSteps
from torchprof_hooks.kernel.steps import StepDetector
from torchprof_hooks.kernel.subscriptions import TrackerSubscription
from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import AFTER_LAST_NAME

pytestmark = pytest.mark.usefixtures("clock")

REST: CellKey = (("(not measured)",), "outside")


def steps_of(found: ProfileData) -> dict[str, Any]:
    """How many steps are in each part."""
    return {part.name: part.steps for part in found.parts}


def own_ms(found: ProfileData) -> dict[CellKey, float]:
    return {key: t.self_ns / MS for key, t in found.cells.items() if t.self_ns}


# What is measured


@pytest.mark.parametrize(
    ("some", "parts"),
    [
        ({"steps": 4}, (1, 3, 16)),
        ({"steps": 1}, (1, 0, 19)),
        ({"steps": 2, "every": 6}, (1, 7, 12)),
        ({"steps": 1, "every": 2}, (1, 9, 10)),
        ({"steps": 20}, (1, 19)),
        ({"steps": 99, "every": 100}, (1, 19)),
    ],
)
def test_so_many_steps_are_measured(
    some: dict[str, Any], parts: tuple[int, ...]
) -> None:
    model = Net()
    with profile(**some) as prof:
        train(model, 20)
    found = prof.profile
    # What is left after the last step is nobody's: the block of measured ones is over.
    counted = [n for name, n in steps_of(found).items()]
    assert tuple(counted) == parts or tuple(counted) == (*parts, 0)
    measured = parts[0] + parts[1]
    assert calls(found, "Net.first", "forward") == measured
    assert found.steps == 20
    assert found.wall_ns == 20 * STEP_MS * MS
    check_sums(found)


def test_steps_that_are_not_measured_are_not_time_after_the_last_step() -> None:
    with profile(steps=4, every=10) as prof:
        train(Net(), 20)
    assert not [path for path, _ in prof.profile.cells if path == (AFTER_LAST_NAME,)]


def test_nothing_is_scaled() -> None:
    work = Work(2, 3)
    with profile(steps=2, every=4) as prof:
        optimizer = sgd(work)
        for step in range(10):
            work.forward_ms = 2 if step % 4 < 2 else 20
            work(torch.ones(2)).sum().backward()
            burn(1)
            optimizer.step()
    found = prof.profile
    assert own_ms(found) == {
        (("Work",), "forward"): 6 * 2,
        (("Work",), "backward"): 6 * 3,
        (("(outside modules)",), "outside"): 6,
        REST: 4 * 24,
    }
    assert own_ms(found.loop) == {
        (("Work",), "forward"): 5 * 2,
        (("Work",), "backward"): 5 * 3,
        (("(outside modules)",), "outside"): 5,
    }
    [*_, rest] = found.parts
    assert (rest.name, rest.steps, rest.wall_ns) == ("unmeasured", 4, 4 * 24 * MS)
    assert rest.step_times.later_ns == 4 * 24 * MS
    assert found.loop.step_times.later_ns == 5 * 6 * MS


def test_how_much_longer_measured_steps_took() -> None:
    """Than those of the block before: not the first one, with the start-up."""
    work = Work(2, 3)
    with profile(steps=1, every=3) as prof:
        optimizer = sgd(work)
        for step in range(10):
            work.forward_ms = 100 if step == 0 else 2 + (step % 3 == 0) * step / 10
            work(torch.ones(2)).sum().backward()
            optimizer.step()
    assert prof.profile.measured.longer == pytest.approx((0.3 / 5, 0.6 / 5, 0.9 / 5))


@pytest.mark.parametrize("pause_at", [0, 1, 4])
def test_a_pause_now_and_then_does_not_hide_or_feign_that_they_took_longer(
    pause_at: int,
) -> None:
    """Saving, say, in a step of each measured block, or of each other one."""
    work = Work(2, 3)
    with profile(steps=3, every=8) as prof:
        optimizer = sgd(work)
        for step in range(32):
            work.forward_ms = 2 + (step % 8 < 3)
            work(torch.ones(2)).sum().backward()
            burn(500 if step % 8 == pause_at else 0)
            optimizer.step()
    assert prof.profile.measured.longer == pytest.approx((1 / 5,) * 3)


@pytest.mark.usefixtures("no_optimizer")
def test_without_optimizers_passes_are_steps() -> None:
    work = Work(2, 3)
    with profile(steps=1, every=4) as prof:
        for _ in range(12):
            work(torch.ones(2)).sum().backward()
            burn(1)
    found = prof.profile
    assert (found.steps, steps_of(found)["unmeasured"]) == (12, 9)
    assert calls(found, "Work", "backward") == 3
    check_sums(found)


def test_the_program_may_say_where_steps_end() -> None:
    model = Net()
    with profile(steps=2, every=5) as prof:
        for _ in range(20):
            infer(model, 3)
            prof.step()
    found = prof.profile
    assert found.steps == 20
    assert calls(found, "Net", "forward") == 8 * 3
    check_sums(found)


def test_a_program_that_ends_before_the_first_block_is_over() -> None:
    model = Net()
    for work in (lambda: train(model, 3), lambda: infer(model, 3)):
        with profile(steps=10, every=100) as prof:
            work()
        assert calls(prof.profile, "Net", "forward") == 3
        assert "unmeasured" not in steps_of(prof.profile)
    with profile(steps=10) as prof:
        pass
    assert prof.profile.is_empty


def test_slow_steps_are_those_that_were_measured() -> None:
    work = Work(2, 3)
    with profile(steps=5, every=10) as prof:
        optimizer = sgd(work)
        for step in range(100):
            work.forward_ms = 50 if step in (52, 57) else 2
            work(torch.ones(2)).sum().backward()
            optimizer.step()
    [slow] = prof.profile.slow_steps
    assert (slow.number, slow.duration_ns, slow.module) == (28, 53 * MS, "Work")


@NATIVE_CORE
def test_owners_of_memory_are_right_after_steps_that_were_not_measured() -> None:
    """What was made there is met again, and what was freed is gone."""
    model = nn.Linear(100, 100, bias=False)
    first, kept = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), []
    x = torch.ones(2, 100)
    size = 4 * 100 * 100
    with profile(memory=True, steps=1, every=3) as prof:
        second: torch.optim.Optimizer | None = None
        for step in range(10):
            model(x).sum().backward()
            if step in (1, 4):  # two states, and a megabyte
                second = second or torch.optim.Adam(model.parameters())
                second.step()
                kept.append(torch.ones(250_000))
            if step == 5:
                kept.clear()
            first.step()
            first.zero_grad()
    memory = prof.profile.memory
    assert memory is not None
    kinds = memory.bytes_by_kind()
    assert sum(kinds.values()) == memory.peak_bytes
    assert (kinds["parameter"], kinds["gradient"]) == (size, size)
    assert kinds["optimizer state"] == size
    assert memory.peak_bytes < 1_000_000


# What is on torch


def test_in_other_steps_only_the_hook_that_counts_is_there() -> None:
    model = Net()
    seen: list[dict[str, object]] = []
    before = registered(model)
    with profile(steps=1, every=3, functions=True, memory=True):
        train(model, 8, lambda: seen.append(registered(model)))
    counted = {**before, "optimizers": 2}
    assert [each == counted for each in seen] == [n % 3 != 0 for n in range(8)]
    assert registered(model) == before


@pytest.mark.usefixtures("no_optimizer")
def test_without_optimizers_the_engines_entry_is_there() -> None:
    work, seen = Work(), []
    before = registered(work)

    def note() -> None:
        seen.append(registered(work))
        burn(1)

    noting = Does(note)
    with profile(steps=1, every=4):
        for _ in range(8):
            noting(work(torch.ones(2))).sum().backward()
    for number, each in enumerate(seen):
        if number % 4:
            assert each.pop("backward") is not before["backward"]
            left = {**before, "optimizers": 2}
            del left["backward"]
            assert each == left


def test_where_the_program_says_it_nothing_is_there() -> None:
    model = Net()
    seen: list[dict[str, object]] = []
    before = registered(model)
    with profile(steps=1, every=3) as prof:
        for _ in range(8):
            infer(model, 1)
            seen.append(registered(model))
            prof.step()
    assert [each == before for each in seen] == [n % 3 != 0 for n in range(8)]


def test_a_block_refers_to_nothing_of_the_programs() -> None:
    model = Net()
    optimizer = sgd(model)
    with profile(steps=1, memory=True):
        for _ in range(3):
            model(X).sum().backward()
            optimizer.step()
        left = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        assert left() is None


# Time


def test_time_between_blocks_is_the_profilers(monkeypatch: pytest.MonkeyPatch) -> None:
    close = TrackerSubscription.close

    def close_slowly(self: TrackerSubscription, by_exception: bool = False) -> None:
        burn(5)
        close(self, by_exception)

    with profile(steps=1, every=2) as prof:
        with monkeypatch.context() as patched:
            patched.setattr(TrackerSubscription, "close", close_slowly)
            train(Net(), 8)
        found = prof.profile
    assert found.phase_times_ns()["profiler"] % (5 * MS) == 0
    assert found.phase_times_ns()["profiler"] >= 4 * 5 * MS
    assert found.step_times.steps_ns == 8 * STEP_MS * MS
    assert found.overhead_ns >= found.phase_times_ns()["profiler"]
    check_sums(found)


#: What is asked of a profiler, and the function that makes it.
DOCUMENTS: dict[str, tuple[Callable[[Profiler], object], Any, str]] = {
    "report": (Profiler.report, report_module, "report"),
    "in a notebook": (Profiler._repr_html_, blocks, "document"),
    "scalars": (Profiler.scalars, scalars_module, "scalars"),
}


@pytest.mark.parametrize("asked", DOCUMENTS.values(), ids=DOCUMENTS)
@pytest.mark.parametrize("some", [{}, {"steps": 1}], ids=str)
def test_a_document_in_the_block_is_overhead_and_in_no_step(
    some: dict[str, Any],
    asked: tuple[Callable[[Profiler], object], Any, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask, module, name = asked
    make = getattr(module, name)

    def slowly(*args: Any, **options: Any) -> object:
        burn(500)
        return make(*args, **options)

    with monkeypatch.context() as patched, profile(**some) as prof:
        patched.setattr(module, name, slowly)
        model = Net()
        for _ in range(3):
            train(model, 10)
            assert ask(prof)
    found = prof.profile
    assert found.phase_times_ns()["profiler"] == 3 * 500 * MS
    assert found.step_times.steps_ns == 30 * STEP_MS * MS
    assert found.wall_ns == (3 * 500 + 30 * STEP_MS) * MS
    assert not found.slow_steps
    assert found.overhead_ns >= 3 * 500 * MS


def test_a_profiler_in_the_block_of_another_one() -> None:
    model = Net()
    with profile() as outer:
        train(model, 2)
        with profile(steps=1, every=2) as inner:
            train(model, 4)
        train(model, 2)
    assert calls(outer.profile, "Net", "forward") == 8
    assert calls(inner.profile, "Net", "forward") == 2
    assert outer.profile.phase_times_ns()["profiler"] == 0
    assert (outer.profile.wall_ns, inner.profile.wall_ns) == (
        8 * STEP_MS * MS,
        4 * STEP_MS * MS,
    )


# Blocks of the program


@pytest.mark.parametrize("each", [1, 2, 5])
def test_the_program_may_stop_and_go_on(each: int) -> None:
    model = Net()
    optimizer = sgd(model)
    prof = profile(steps=2, every=5)

    @prof
    def some_steps() -> None:
        for _ in range(each):
            model(X).sum().backward()
            burn(STEP_MS)
            optimizer.step()

    for _ in range(20 // each):
        some_steps()
        burn(100)
    found = prof.profile
    assert (found.steps, found.wall_ns) == (20, 20 * STEP_MS * MS)
    assert calls(found, "Net", "forward") == 8
    check_sums(found)


def test_each_thread_counts_its_own_steps() -> None:
    prof = profile(steps=2)

    def work() -> None:
        with prof:
            train(Net(), 5)

    for _ in range(2):
        in_thread(work)
    found = prof.profile
    assert steps_of(found) == {"start-up": 2, "loop": 2, "unmeasured": 6}


def failing() -> None:
    raise ValueError("on purpose")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_exceptions_leave_nothing(number: int) -> None:
    model = Net()
    before = registered(model)
    works: list[Callable[[], object]] = [lambda: None] * 3
    works[number] = failing
    prof = profile(steps=1, every=3)

    def run() -> None:
        with prof:
            for work in works:
                train(model, 1, work)

    with pytest.raises(ValueError, match="on purpose"):
        run()
    assert registered(model) == before
    check_sums(prof.profile)


def test_what_is_kept_of_blocks_is_bounded() -> None:
    model = Net()
    optimizer = sgd(model)
    with followed(steps=1, every=2) as steps:
        for _ in range(1200):
            model(X).sum().backward()
            burn(1)
            optimizer.step()
    found = steps.profile()
    assert len(found.measured.longer) == 512
    assert len(steps.tracker.sites) < 30


def test_a_pass_that_is_only_counted_is_not_kept() -> None:
    """An interrupt may leave it open until the next one."""
    loss = torch.ones(2, requires_grad=True).sum()
    living = weakref.ref(loss)
    counted = CountedSteps(StepDetector(EndedSteps(int), int))
    counted.begin_pass(PassRequest((loss,)))
    del loss
    assert living() is None
