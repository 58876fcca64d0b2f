"""Some steps of a loop are measured; of the others, only parts as a whole."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE, numbers_in_log
from tests.cost.budgeted import (
    STEP_MS,
    THIRDS,
    Fixed,
    Limited,
    Net,
    X,
    bare,
    calls,
    check_sums,
    followed,
    infer,
    measured,
    registered,
    sgd,
    train,
)
from tests.doing import Does, DoesInBackward
from tests.fake_clock import MS, FakeClock, burn
from tests.functions import Watching
from tests.helpers import in_thread
from tests.planted import Work
from torchprof_hooks import Profile, profile
from torchprof_hooks.capture.duty import Plan
from torchprof_hooks.capture.tracking.subscriptions import TrackerSubscription
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import AFTER_BACKWARD_NAME

pytestmark = pytest.mark.usefixtures("clock")


# Which steps


def test_the_budget_is_told_what_ended() -> None:
    plans = (bare(3), measured(2), bare())
    duty = Fixed(*plans)
    with followed(duty):
        train(Net(), 13)
    for block, plan in zip(duty.ended, plans * 2, strict=True):
        took_ns = plan.steps * STEP_MS * MS
        assert block[:5] == (plan.kind, plan.steps, took_ns, 0, 0)


def test_what_was_never_measured_inside_has_one_row(limited: Limited) -> None:
    with limited(bare(9)) as prof:
        work = Work(2, 3)
        optimizer = sgd(work)
        work(torch.ones(2)).sum().backward()
        optimizer.step()
        nets = nn.Sequential(Work(4, 6))
        for _ in range(3):
            nets(torch.ones(2)).sum().backward()
            optimizer.step()
    rows = {row.name: row for row in prof.profile.loop.rows()}
    assert rows["(not measured)"].phases["forward"].self_ns == 3 * 4 * MS
    assert rows["Sequential"].phases["forward"].calls == 3
    assert rows["Sequential"].phases["forward"].cumulative_ns == 3 * 4 * MS
    check_sums(prof.profile)


def test_what_is_left_of_half_a_step(limited: Limited) -> None:
    with limited(*THIRDS) as prof:
        Net()(X)
    assert calls(prof.profile, "Net") == 1
    assert prof.profile.steps == 0
    assert not prof.profile.is_empty


def test_times_are_those_of_an_independent_clock(limited: Limited) -> None:
    work = Work(2, 3)
    with limited(*THIRDS) as prof:
        optimizer = sgd(work)
        for _ in range(7):  # of which the first, and two others are measured
            work(torch.ones(2)).sum().backward()
            burn(1)
            optimizer.step()
    found = prof.profile
    assert found.wall_ns == 7 * 6 * MS
    own_ns = {key: t.self_ns for key, t in found.cells.items() if t.self_ns}
    assert own_ns == {
        (("Work",), "forward"): 7 * 2 * MS,
        (("Work",), "backward"): 7 * 3 * MS,
        (("(outside modules)",), "outside"): 7 * 1 * MS,
    }


def test_steps_of_different_length_are_represented_by_their_time(
    limited: Limited,
) -> None:
    """Inside of a part, time is divided as in the measured steps; what the part took is
    known in all."""
    first, second = Work(3, 0), Work(1, 0)
    model = nn.Sequential(first, second)
    optimizer = sgd(model)
    with limited(bare(1), measured(1)) as prof:
        for step in range(9):
            first.forward_ms = second.forward_ms = 1 if step % 2 else 7
            model(torch.ones(2)).sum().backward()
            optimizer.step()
    rows = {row.name: row for row in prof.profile.rows()}
    assert rows["Sequential"].cumulative_ns == (5 * 14 + 4 * 2) * MS
    assert rows["Sequential.0"].self_ns == rows["Sequential.1"].self_ns


def test_time_between_blocks_is_not_lost(
    limited: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_subscription = TrackerSubscription.close

    def close_slowly(self: TrackerSubscription, by_exception: bool = False) -> None:
        burn(5)
        close_subscription(self, by_exception)

    prof = limited(*THIRDS)
    with prof:
        train(Net(), 2)
        monkeypatch.setattr(TrackerSubscription, "close", close_slowly)
        train(Net(), 6)  # bare, measured, and so on: four changes
        found = prof.profile
    assert found.phase_times_ns()["profiler"] == 4 * 5 * MS
    assert found.wall_ns == (8 * STEP_MS + 4 * 5) * MS
    assert found.step_times.steps_ns == 8 * STEP_MS * MS
    assert found.overhead_ns >= 4 * 5 * MS
    check_sums(found)


# Functions


def test_functions_are_those_of_all_steps() -> None:
    with followed(Fixed(bare(), measured()), functions=True) as steps:
        train(Net(), 13)
    found = steps.profile()
    assert found.measured[:2] == (13, 7)
    assert calls(found, "Net.first") == 13
    named = {row.name: row.calls for row in found.rows("function")}
    assert (named["linear"], named["relu"], named["sum"]) == (26, 13, 13)


# What steps are like

EITHER = pytest.mark.parametrize("plan", [bare(9), measured(9)], ids=["off", "on"])


class Optimizer(torch.optim.Optimizer):
    """Takes 4 ms, before it calls something."""

    def __init__(self) -> None:
        super().__init__([nn.Parameter(X)], {})

    def step(self, then: Callable[[], object] = Net) -> None:  # type: ignore[override]
        burn(4)
        then()


def make_pass(in_backward: Callable[[], object]) -> None:
    x = torch.ones(1, requires_grad=True)
    DoesInBackward.apply(x, in_backward).sum().backward()


@torch.enable_grad()
def train_once() -> None:
    Work(2, 5)(torch.ones(1)).sum().backward()


def fail() -> None:
    burn(3)
    raise ValueError("on purpose")


def fail_to_step() -> None:
    with pytest.raises(ValueError, match="on purpose"):
        Optimizer().step(fail)


def fail_to_step_inside() -> None:
    with pytest.raises(ValueError, match="on purpose"):
        Optimizer().step(lambda: Optimizer().step(fail))


def fail_in_backward() -> None:
    with pytest.raises(ValueError, match="on purpose"):
        make_pass(fail)


#: What is done in a step, and what it takes of forward, of backward with recomputation,
#: of optimizers besides the one that ends it, and of the rest, in milliseconds.
UNUSUAL: dict[str, tuple[Callable[[], object], tuple[int, ...]]] = {
    "closure": (lambda: Optimizer().step(train_once), (2, 5, 4, 0)),
    "inner optimizer": (lambda: Optimizer().step(Optimizer().step), (0, 0, 8, 0)),
    "failing optimizer": (fail_to_step, (0, 0, 4, 3)),
    "failing inner optimizer": (fail_to_step_inside, (0, 0, 8, 3)),
    "pass in a pass": (lambda: make_pass(train_once), (0, 7, 0, 0)),
    "failing pass": (fail_in_backward, (0, 3, 0, 0)),
    "other thread": (lambda: in_thread(train_once), (0, 0, 0, 7)),
}


@EITHER
@pytest.mark.parametrize(("work", "took_ms"), UNUSUAL.values(), ids=UNUSUAL)
def test_phases_are_timed_in_all_steps(
    plan: Plan, work: Callable[[], object], took_ms: tuple[int, ...]
) -> None:
    optimizer = Optimizer()
    with followed(Fixed(plan)) as steps:
        for does in (Net, work, Net):
            does()
            optimizer.step()
    times_ns = steps.profile().phase_times_ns()
    passes_ns = times_ns["backward"] + times_ns["recompute"]
    others = times_ns["forward"], passes_ns, times_ns["optimizer"], times_ns["outside"]
    forward_ms, backward_ms, optimizers_ms, outside_ms = took_ms
    expected = forward_ms, backward_ms, optimizers_ms + 3 * 4, outside_ms
    assert others == tuple(ms * MS for ms in expected)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("each", [1, 7])
def test_modules_that_are_made_anew(limited: Limited, each: int, keeps: bool) -> None:
    """Of those that were never measured inside, the time of their calls is known."""
    work, losses = Work(3, 4), list[nn.Module]()
    optimizer = sgd(work)
    with limited(*THIRDS) as prof:
        for step in range(28):
            if step % each == 0:
                losses = [Does(lambda: burn(5)), *losses * keeps]
            losses[0](work(torch.ones(2))).sum().backward()
            optimizer.step()
    rows = {row.name: row.phases["forward"] for row in prof.profile.rows()}
    found = [row for name, row in rows.items() if name.startswith("Does")]
    assert len(found) == (28 // each if keeps else 1)
    assert sum(row.calls for row in found) == 28
    assert sum(row.cumulative_ns for row in found) == 28 * 5 * MS
    assert rows["Work"].self_ns == 28 * 3 * MS


@pytest.mark.parametrize("ends_ms", [3, 4])
def test_what_is_done_between_steps_comes_after_no_backward(
    ends_ms: int, no_optimizer: None
) -> None:
    """Without an optimizer, a pass ends the step."""
    work = Work(1, 2)
    with followed(Fixed(measured(), bare())) as steps:
        steps.at_step = lambda _: burn(50) == 0
        for _ in range(6):
            work(torch.ones(2)).sum().backward()
            burn(ends_ms)
        work(torch.ones(2))
        found = steps.profile()
    cells = found.cells
    assert cells[(AFTER_BACKWARD_NAME,), "outside"].self_ns == 6 * ends_ms * MS
    assert found.phase_times_ns()["profiler"] == 6 * 50 * MS


# What is registered meanwhile: hooks of the reference core stay, and look away


@NATIVE_CORE
@pytest.mark.parametrize("functions", [False, True])
def test_modules_inside_of_others_have_hooks_in_measured_steps_alone(
    limited: Limited, functions: bool
) -> None:
    model = Net()
    seen: list[dict[str, object]] = []
    before = registered(model)
    with limited(*THIRDS, functions=functions):
        train(model, 8, lambda: seen.append(registered(model)))
    assert [bool(each["modules"]) for each in seen] == [n % 3 == 0 for n in range(8)]
    for each in seen:
        assert each["backward"] is not before["backward"]
        assert not each["modes"]
    assert registered(model) == before


@NATIVE_CORE
def test_without_optimizers_only_outermost_modules_have_hooks(limited: Limited) -> None:
    model, seen = Net(), []
    before = registered(model)
    probe = model.first.register_forward_hook(lambda *_: seen.append(registered(model)))
    with limited(*THIRDS):
        infer(model, 8)
    probe.remove()
    for i in (1, 2, 4, 5):
        of_model = {"first": 1}  # the probe's own
        left = {"optimizers": 2, "these modules": of_model}
        replaced = {name: seen[i][name] for name in ("backward", "loaders")}
        assert all(replaced[name] is not before[name] for name in replaced)
        assert seen[i] == {**before, **left, **replaced}
    assert registered(model) == before


# What must not change


def train_noisy() -> list[torch.Tensor]:
    """Everything that is left of a training run."""
    torch.manual_seed(1)
    body = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.BatchNorm1d(8))
    model = nn.Sequential(body, nn.LSTM(8, 4))
    optimizer = torch.optim.Adam(model.parameters())
    kept = []
    for _ in range(9):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4))[0].square().mean()
        loss.backward()
        optimizer.step()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        kept += [loss.detach(), *grads]
    return [*kept, *model.state_dict().values(), torch.get_rng_state()]


OPTIONS = [{}, {"functions": True}, {"memory": True, "functions": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_results_gradients_and_random_state_are_bit_identical(
    limited: Limited, options: dict[str, bool]
) -> None:
    expected = train_noisy()
    with limited(*THIRDS, **options) as prof:
        found = train_noisy()
    assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))
    assert prof.profile.steps == 9
    assert prof.profile.has_functions == ("functions" in options)
    assert (prof.profile.memory is not None) == ("memory" in options)
    check_sums(prof.profile)


class Probe:
    """Dies with the node whose metadata holds it."""


@pytest.mark.parametrize("functions", [False, True])
def test_graphs_and_models_die_when_they_would_without_us(
    limited: Limited, functions: bool
) -> None:
    sgd(Net())  # the first optimizer of a process leaves frames of torch's behind
    gc.collect()
    gc.disable()
    try:
        with limited(*THIRDS, functions=functions):
            model = Net()
            optimizer = sgd(model)
            for _ in range(8):
                loss = model(X).sum()
                graph = weakref.ref(loss.grad_fn.metadata.setdefault("", Probe()))
                loss.backward()
                optimizer.step()
                del loss
                assert graph() is None
            living = weakref.ref(model), weakref.ref(model.first.weight)
            del model, optimizer
            assert [reference() for reference in living] == [None, None]
    finally:
        gc.enable()


def test_a_model_without_optimizer_dies_too(limited: Limited) -> None:
    with limited(bare(50)):
        model = Net()
        infer(model, 8)
        living = weakref.ref(model)
        del model
        assert living() is None


def test_a_model_that_is_saved_or_copied_meanwhile_has_nothing_of_ours() -> None:
    model = Net()
    with followed(Fixed(bare(9))):
        train(model, 3)
        saved = pickle.dumps(model)
        copied = copy.deepcopy(model)
    assert vars(copied).keys() == vars(model).keys() == vars(Net()).keys()
    assert b"torchprof_hooks" not in saved


def test_modes_of_the_program_go_on(limited: Limited) -> None:
    model = Net()
    optimizer = sgd(model)
    with limited(*THIRDS, functions=True) as prof:
        for _ in range(8):
            with Watching(), torch.device("cpu"):
                model(X).sum().backward()
                optimizer.step()  # hooks come and go in here
    assert torch._C._len_torch_function_stack() == 0
    assert prof.profile.steps == 8


# Reading


def test_reading_at_any_moment(limited: Limited) -> None:
    seen: list[Profile] = []
    with limited(*THIRDS) as prof:
        train(Net(), 13, lambda: seen.append(prof.profile))
    for found in seen:
        check_sums(found)
    assert [found.steps for found in seen] == list(range(13))
    of_modules = [found.measured.measured for found in seen]
    assert of_modules == [0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize("is_limited", [False, True])
def test_reading_in_another_thread(
    limited: Limited, clock: FakeClock, is_limited: bool
) -> None:
    prof, is_over = limited(*THIRDS) if is_limited else profile(), threading.Event()
    counts: list[int] = []

    def work() -> None:
        with prof:
            while not is_over.is_set():
                train(Net(), 1)
                infer(Net(), 1)

    thread = threading.Thread(target=work)
    start_ns = clock.now_ns
    thread.start()
    try:
        for _ in range(50):
            found = prof.profile
            elapsed_ns = clock.now_ns - start_ns
            assert sum(t.self_ns for t in found.cells.values()) == found.wall_ns
            # A block may be counted twice at the moment at which it ends.
            assert found.wall_ns <= (1 + is_limited) * elapsed_ns
            counts.append(calls(found, "Net"))
    finally:
        is_over.set()
        thread.join()
    check_sums(prof.profile)
    assert is_limited or counts == sorted(counts)


@EITHER
def test_time_may_have_ended_before_it_is_read(plan: Plan, clock: FakeClock) -> None:
    def read() -> None:
        burn(3)
        end_ns = clock.now_ns
        burn(1000)
        seen.append(steps.profile(end_ns))

    seen: list[ProfileData] = []
    with followed(Fixed(plan)) as steps:
        train(Net(), 2)
        nn.Sequential(Does(read))(X)  # what is open ends then, too
        read()
    assert [found.wall_ns for found in seen] == [19 * MS, 1022 * MS]
    times_ns = [found.phase_times_ns() for found in seen]
    assert [each["forward"] for each in times_ns] == [3 * MS, 1003 * MS]
    assert [each["outside"] for each in times_ns] == [16 * MS, 19 * MS]


@EITHER
def test_the_last_step_of_a_program_without_optimizer_ends_with_it(
    plan: Plan, clock: FakeClock, no_optimizer: None
) -> None:
    model = Work(1, 2)
    with followed(Fixed(plan)) as steps:
        for _ in range(3):
            model(torch.ones(1)).sum().backward()
        burn(4)
        end_ns = clock.now_ns
        burn(1000)
        times = steps.profile(end_ns).step_times
    assert times.first_ns == 3 * MS
    assert [bucket.total_ns for bucket in times.later] == [3 * MS, (3 + 4) * MS]


def test_nothing_grows_with_the_number_of_steps(limited: Limited) -> None:
    model = Net()
    sizes = []
    with limited(*THIRDS) as prof:
        steps: Any = prof._rounds[0]._steps
        for _ in range(3):
            train(model, 40)
            infer(model, 40)
            trackers = [each.tracker for each in steps._by_kind.values()]
            for tracker in trackers:
                tracker.log.fold()
                assert not numbers_in_log(tracker)
            sizes.append([len(tracker.sites) for tracker in trackers])
    assert sizes[-2] == sizes[-1]


# A budget of its own


def test_what_is_no_share() -> None:
    with pytest.raises(ValueError, match='max_overhead must be a share, "'):
        profile(max_overhead=0)
    share: Any = [0.01]
    with pytest.raises(TypeError, match=r'or "none", not \[0\.01\]'):
        profile(max_overhead=share)


def test_a_percentage_is_a_share() -> None:
    with profile(max_overhead="50%") as prof:
        train(nn.Sequential(nn.Linear(4, 4)), 5)
    assert prof.profile.steps == 5
