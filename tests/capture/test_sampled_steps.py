"""A thread followed step by step, on real training loops."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as optimizer_module
from torch.overrides import TorchFunctionMode

from tests.capture.budgeted import STEP_MS, Net, Taking, infer, sampled, sampled_by
from tests.capture.budgeted import train as train_with_work
from tests.doing import Does
from tests.fake_clock import MS, FakeClock, burn
from tests.helpers import in_thread
from tests.planted import Work
from torchprof_hooks import profile, profile_function
from torchprof_hooks.capture.attach.function_mode import FunctionMode
from torchprof_hooks.capture.sampling.estimates.strata import Strata
from torchprof_hooks.capture.sampling.levels import Level
from torchprof_hooks.capture.sampling.machine_costs import CountedCosts
from torchprof_hooks.capture.sampling.prices import Prices
from torchprof_hooks.capture.sampling.scheduler import Scheduler
from torchprof_hooks.capture.sampling.steps import steps_without_optimizer
from torchprof_hooks.capture.torch_names.functions import function_modes
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import (
    AFTER_BACKWARD_NAME,
    OUTSIDE_NAME,
    UNSAMPLED_NAME,
)

pytestmark = pytest.mark.usefixtures("ticking")


ALL = (Level.FUNCTIONS, Level.PHASES, Level.MODULES, Level.PHASES)


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def counts(strata: Strata) -> tuple[int, int, int, int]:
    return (
        strata.warm_up.steps,
        strata.phases.steps,
        strata.modules.steps,
        strata.functions.steps,
    )


def calls(found: ProfileData, name: str) -> int:
    return sum(row.calls for row in found.rows() if row.name == name)


def function_calls(found: ProfileData, name: str) -> int:
    return sum(
        totals.calls for (path, _), totals in found.cells.items() if path[-1] == name
    )


def own_sum(found: ProfileData) -> int:
    return sum(totals.self_ns for totals in found.cells.values())


def hooks_of(module: nn.Module) -> int:
    return len(module._forward_pre_hooks) + len(module._forward_hooks)


def test_each_step_in_its_level() -> None:
    with sampled(*ALL) as sampler:
        train(Net(), 13)
        strata = sampler.strata()
        assert sampler.steps == 13
    assert counts(strata)[1:3] == (6, 3)
    for part in (strata.warm_up, strata.phases, strata.modules, strata.functions):
        assert part.profile.wall_ns == own_sum(part.profile)
    assert calls(strata.phases.profile, "Net") == 6
    assert calls(strata.phases.profile, "Net.first") == 0
    assert calls(strata.modules.profile, "Net.first") == 3
    assert not strata.modules.profile.has_functions
    assert strata.functions.profile.has_functions
    assert calls(strata.whole, "Net") == 13
    assert strata.whole.steps == 13
    for of_functions in (False, True):
        estimate = strata.estimate(of_functions=of_functions)
        assert calls(estimate, "Net.first") == calls(estimate, "Net") == 13
        rounded = len(estimate.cells)  # each to a nanosecond
        assert own_sum(estimate) == pytest.approx(own_sum(strata.whole), abs=rounded)


def test_phases_are_those_of_every_step(clock: FakeClock) -> None:
    clock.cost_per_reading_ns = 0
    work = Work(forward_ms=3, backward_ms=5)
    with sampled(Level.FUNCTIONS, *[Level.PHASES] * 20) as sampler:
        optimizer = torch.optim.SGD(work.parameters(), 0.1)
        for _ in range(10):
            work(torch.ones(2)).sum().backward()
            optimizer.step()
        strata = sampler.strata()
    assert counts(strata)[1] == 8
    cells = strata.phases.profile.cells
    assert {key: t.self_ns for key, t in cells.items() if t.self_ns} == {
        (("Work",), "forward"): 8 * 3 * MS,
        (("(backward outside modules)",), "backward"): 8 * 5 * MS,
    }
    rows = {row.name: row for row in strata.estimate(of_functions=False).rows()}
    assert rows["Work"].phases["forward"].self_ns == 10 * 3 * MS
    assert rows["Work"].phases["backward"].self_ns == 10 * 5 * MS


def test_what_is_open_has_no_time_after_the_end(clock: FakeClock) -> None:
    clock.cost_per_reading_ns = 0
    read = []

    def end() -> None:
        burn(3)
        end_ns = clock.now_ns
        burn(1000)
        read.append(sampler.strata(None, end_ns).whole)

    with sampled(Level.MODULES) as sampler:
        nn.Sequential(Does(end))(torch.ones(3))
    cells = read[0].cells.items()
    assert {path: t.self_ns for (path, _), t in cells if t.self_ns} == {
        ("Sequential", "Sequential.0"): 3 * MS
    }
    assert read[0].wall_ns == 3 * MS


def test_time_may_have_ended_before_it_is_read(clock: FakeClock) -> None:
    clock.cost_per_reading_ns = 0
    with sampled(Level.MODULES) as sampler:
        burn(3)
        end_ns = clock.now_ns
        burn(1000)  # on what reading needs
        assert sampler.strata(None, end_ns).whole.wall_ns == 3 * MS
    assert sampler.strata(None, end_ns).whole.wall_ns == 1003 * MS  # all is booked


def test_the_last_step_of_a_program_without_optimizer_ends_with_it(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_without_optimizer, "any_optimizer_made", lambda: False)
    clock.cost_per_reading_ns = 0
    model = Work(1, 2)
    with sampled(Level.MODULES) as sampler:
        for _ in range(3):
            model(torch.ones(1)).sum().backward()
        burn(4)
        end_ns = clock.now_ns
        burn(1000)
        times = sampler.strata(None, end_ns).whole.step_times
    assert times.first_ns == 3 * MS
    assert [bucket.total_ns for bucket in times.later] == [3 * MS, (3 + 4) * MS]


def test_steps_of_which_only_the_end_was_seen_are_like_the_others(
    clock: FakeClock,
) -> None:
    clock.cost_per_reading_ns = 0
    work = Work(forward_ms=3, backward_ms=5)
    with sampled(Level.MODULES, *[Level.STEPS] * 4) as sampler:
        optimizer = torch.optim.SGD(work.parameters(), 0.1)
        for step in range(24):
            work(torch.ones(2)).sum().backward()
            burn(2)
            optimizer.step()
            if step == 18:
                burn(1000)  # of which nothing is known
        burn(7)
        strata = sampler.strata()
    assert sampler.steps == strata.steps == 24
    assert strata.counted.steps == 18
    assert strata.steps_in_phases == strata.looked_at(of_functions=False) == 6
    estimate = strata.estimate(of_functions=False)
    assert own_sum(estimate) == strata.whole.wall_ns == (24 * 10 + 1007) * MS
    assert calls(estimate, "Work") == 24  # they are watched
    rows = {row.name: row.phases for row in estimate.rows()}
    assert rows["Work"]["forward"].self_ns == 24 * 3 * MS
    assert rows["Work"]["backward"].self_ns == 23 * 5 * MS
    assert rows[OUTSIDE_NAME]["outside"].self_ns == 23 * 2 * MS
    assert rows[UNSAMPLED_NAME]["outside"].self_ns == (5 + 2 + 1007) * MS


def test_nothing_is_left_behind() -> None:
    model = Net()
    with sampled(Level.FUNCTIONS, Level.PHASES):
        train(model, 4)
    assert not torch_module._global_forward_pre_hooks
    assert not torch_module._global_forward_hooks
    assert hooks_of(model) == 0
    assert all(hooks_of(inner) == 0 for inner in model.modules())
    assert not optimizer_module._global_optimizer_pre_hooks
    assert not optimizer_module._global_optimizer_post_hooks


def test_a_model_that_is_saved_or_copied_meanwhile_has_nothing_of_ours() -> None:
    model = Net()
    with sampled(Level.PHASES):
        train(model, 2)
        saved = pickle.dumps(model)
        copied = copy.deepcopy(model)
        assert vars(copied).keys() == vars(model).keys() == vars(Net()).keys()
    assert b"torchprof_hooks" not in saved
    x = torch.ones(2, 4)
    assert copied(x).tolist() == model(x).tolist()


@pytest.mark.parametrize("level", ALL)
def test_a_model_dies_when_the_program_drops_it(level: Level) -> None:
    with sampled(level):
        for _ in range(5):
            model = Net()
            train(model, 2)
            living = weakref.ref(model), weakref.ref(model.first.weight)
            del model
            assert [reference() for reference in living] == [None, None]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_models() -> None:
    model = torch.jit.script(Net())
    with sampled(Level.PHASES) as sampler:
        train(model, 5)
        strata = sampler.strata()
    assert calls(strata.phases.profile, "Net") == 4
    assert hooks_of(model) == 0


def test_modes_of_the_program_end_in_the_middle_of_a_step() -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    compiled = torch.compile(torch.sin, backend="eager")
    with sampled(Level.FUNCTIONS, Level.PHASES):
        for _ in range(6):
            with Mode(), torch.device("cpu"):
                compiled(torch.ones(2))
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()  # hooks come and go in here
            left = [mode for mode in function_modes() if type(mode) is not FunctionMode]
            assert not left
    assert not function_modes()


def test_a_disturbed_step_is_kept_apart() -> None:
    with sampled(Level.MODULES) as sampler:
        sampler.at_step = lambda steps: steps == 2
        train(Net(), 5)
        strata = sampler.strata()
    assert strata.disturbed.steps == 1
    assert calls(strata.disturbed.profile, "Net") == 1
    assert calls(strata.whole, "Net") == 5
    assert calls(strata.estimate(of_functions=False), "Net") == 4


def test_nodes_of_a_run_that_goes_on() -> None:
    """Of 5 steps, 4 after the first; another thread knows of those that are booked, and
    takes the time since then for more of the kind."""
    with sampled(Level.STEPS) as sampler:
        train_with_work(Net(), 5)
        each = sampler.strata().warm_up.nodes
        assert each > 0
        assert sampler.strata().counted.nodes == 4 * each
        assert in_thread(lambda: sampler.strata().counted.nodes) >= 4 * each
    assert sampler.strata().counted.nodes == 4 * each


def test_what_seen_steps_would_have_taken_unseen() -> None:
    """By the time of each node in steps just before, of which only the end was seen."""
    # In one that comes just after others that were looked into, that is not known.
    with sampled(Level.STEPS, Level.MODULES, Level.PHASES, Level.MODULES) as sampler:
        train_with_work(Net(), 12)
        strata = sampler.strata()
    of_step_ns = strata.counted.steps_ns / strata.counted.steps
    assert of_step_ns == pytest.approx(STEP_MS * MS, rel=0.05)
    assert strata.counted.unseen_ns == strata.warm_up.unseen_ns == 0
    nodes = strata.counted.nodes / strata.counted.steps
    for seen in (strata.modules, strata.phases):
        assert seen.nodes == nodes * seen.steps > 0
    assert strata.phases.unseen_ns == 0
    expected_ns = strata.modules.steps * of_step_ns
    assert strata.modules.unseen_ns == pytest.approx(expected_ns, rel=0.01)


@pytest.mark.parametrize("work", [train, infer], ids=["training", "evaluation"])
def test_what_is_done_between_steps_is_in_no_book(
    work: Callable[[nn.Module, int], None],
) -> None:
    def save(steps: int) -> bool:
        burn(50)
        return False

    with sampled(Level.MODULES, Level.PHASES) as sampler:
        sampler.at_step = save
        work(Net(), 6)
        whole = sampler.strata().whole
    assert whole.wall_ns < 50 * MS
    assert 0 <= whole.overhead_ns < 50 * MS
    assert all(totals.overhead_ns >= 0 for totals in whole.cells.values())


def test_what_is_done_between_steps_is_none_of_what_comes_after_backward(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an optimizer, a pass ends the step."""
    monkeypatch.setattr(steps_without_optimizer, "any_optimizer_made", lambda: False)

    def save(steps: int) -> bool:
        burn(50)
        return False

    with sampled(Level.MODULES, Level.PHASES) as sampler:
        sampler.at_step = save
        work = Work()
        for _ in range(6):
            y = work(torch.ones(2)).sum()
            burn(100)
            y.backward()
            burn(7)
        work(torch.ones(2))
        cells = sampler.strata().whole.cells
    after_ns = cells[(AFTER_BACKWARD_NAME,), "outside"].self_ns
    assert after_ns == pytest.approx(6 * 7 * MS, rel=0.01)


def test_a_program_of_many_models_is_looked_at_in_phases() -> None:
    layers = [nn.Linear(4, 4) for _ in range(40)]
    optimizer = torch.optim.SGD([layers[0].weight], 0.1)
    with sampled(Level.PHASES) as sampler:
        for _ in range(4):
            x = torch.ones(2, 4)
            for layer in layers:
                x = layer(x)
            x.sum().backward()
            optimizer.step()
        strata = sampler.strata()
    assert strata.phases.steps == 3
    assert calls(strata.whole, "Linear") == 4


class Loss(nn.Module):
    """Takes 5 ms."""

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        burn(5)
        return y.sum()


def losses(each: int, keeps: bool) -> Iterator[nn.Module]:
    """A new one after so many steps."""
    kept = []
    while True:
        loss = Loss()
        kept += [loss] * keeps
        for _ in range(each):
            yield loss


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("each", [1, 60])
def test_modules_that_are_made_anew_in_the_middle_of_a_program(
    clock: FakeClock, each: int, keeps: bool
) -> None:
    clock.cost_per_reading_ns = 0
    dear = Prices(CountedCosts(500, 1_000, 1_000, 2_000, 200_000))  # are modules
    work, steps = Work(3, 4), 600
    optimizer = torch.optim.SGD(work.parameters(), 0.1)
    with sampled_by(Scheduler(0.02, tuple(Level), 20, dear)) as sampler:
        for _, loss in zip(range(steps), losses(each, keeps), strict=False):
            loss(work(torch.ones(2))).backward()
            burn(1)
            optimizer.step()
        strata = sampler.strata()
    assert strata.modules.steps + strata.functions.steps < steps // 3
    estimate = strata.estimate(of_functions=False)
    # Of a loss that was never looked into, the time of its call is all that is known.
    named = {row.name: row for row in estimate.rows() if row.name.startswith("Loss")}
    found_ns = sum(row.phases["forward"].cumulative_ns for row in named.values())
    assert found_ns == pytest.approx(5 * MS * steps, rel=1e-3)
    rows = {row.name: row for row in estimate.rows()}
    assert rows["Work"].phases["forward"].self_ns == pytest.approx(3 * MS * steps)
    known_ns = rows[OUTSIDE_NAME].self_ns + found_ns
    assert known_ns == pytest.approx(6 * MS * steps, rel=1e-3)


def test_a_loss_that_nobody_keeps(clock: FakeClock) -> None:
    with sampled(Level.PHASES) as sampler:
        work = Work()
        optimizer = torch.optim.SGD(work.parameters(), 0.1)
        for _ in range(12):
            Loss()(work(torch.ones(2))).backward()
            optimizer.step()
        strata = sampler.strata()
    assert strata.phases.steps == 11
    assert calls(strata.whole, "Loss") == 12


def dear_functions() -> Prices:
    """Ten thousand of them cost a second."""
    return Prices(CountedCosts(500, 1_000, 1_000, 2_000, 100_000))


def test_functions_before_the_first_step_are_looked_at_as_long_as_that_is_paid_for(
    clock: FakeClock,
) -> None:
    clock.cost_per_reading_ns = 0
    work = Work(3, 4)
    optimizer = torch.optim.SGD(work.parameters(), 0.1)
    with sampled_by(Scheduler(0.02, tuple(Level), 20, dear_functions())) as sampler:
        for _ in range(20_000):
            torch.ones(2)
            burn(0.01)
        running = sampler.strata().warm_up.profile
        for _ in range(2):
            torch.ones(2)
            work(torch.ones(2)).sum().backward()
            optimizer.step()
        strata = sampler.strata()
    found = strata.warm_up.profile
    seen = function_calls(found, "ones()")
    assert 10_000 < seen < 14_000
    assert function_calls(running, "ones()") == seen
    for each in (running, found):
        times = {path: totals.self_ns for (path, _), totals in each.cells.items()}
        # What comes after the last one that was seen is none of what is known.
        assert times[UNSAMPLED_NAME,] == (20_000 - seen + 1) * MS // 100
        assert times[OUTSIDE_NAME,] == (seen - 1) * MS // 100
        assert each.wall_ns == own_sum(each)
    assert function_calls(strata.functions.profile, "ones()") == 2
    rows = {row.name: row for row in strata.whole.rows()}
    assert rows["Work"].phases["forward"].self_ns == 2 * 3 * MS
    assert not function_modes()


def test_functions_are_looked_at_again_in_the_next_step(clock: FakeClock) -> None:
    clock.cost_per_reading_ns = 0
    work = Work(3, 4)
    optimizer = torch.optim.SGD(work.parameters(), 0.1)
    scheduler = Taking(Level.FUNCTIONS)
    scheduler.prices = dear_functions()
    with sampled_by(scheduler) as sampler:
        for step in range(6):
            for _ in range(20_000 if step == 2 else 1):
                torch.zeros(2)
                burn(0.01)
            work(torch.ones(2)).sum().backward()
            optimizer.step()
        found = sampler.strata().functions.profile
    seen = function_calls(found, "zeros()")
    assert 10_000 < seen < 14_000
    rows = {row.name: row for row in found.rows()}
    assert rows[UNSAMPLED_NAME].self_ns == (20_000 + 4 - seen + 1) * MS // 100
    assert rows["Work"].phases["backward"].self_ns == 5 * 4 * MS
    assert function_calls(found, "ones()") == 4  # but for that step's


def test_inference_in_steps_of_calls() -> None:
    model = Net()
    with sampled(Level.FUNCTIONS, Level.PHASES) as sampler, torch.no_grad():
        for _ in range(9):
            model(torch.ones(2, 4))
        for _ in range(5):
            nn.Linear(4, 4)(torch.ones(2, 4))
        strata = sampler.strata()
    assert sampler.steps == 14
    assert calls(strata.whole, "Net") == 9
    assert calls(strata.whole, "Linear") == 5
    assert 0 < calls(strata.whole, "Net.first") < 9


def test_an_exception_in_a_step() -> None:
    model = Net()
    with sampled(*ALL) as sampler:
        for _ in range(4):
            train(model, 3)
            with pytest.raises(RuntimeError):
                model(torch.ones(2, 5))
    whole = sampler.strata().whole
    assert calls(whole, "Net") == 16
    assert own_sum(whole) == whole.wall_ns
    assert whole.aborted_calls >= 4


def test_a_loop_in_a_profiled_function() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @profile_function
    def train_step() -> None:
        burn(1)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    with sampled(*ALL) as sampler:
        for _ in range(9):
            train_step()
        strata = sampler.strata()
    assert sampler.steps == 9
    assert strata.phases.steps == 4
    whole = strata.whole
    assert calls(whole, "train_step") == 9
    paths = {path for path, _ in whole.cells}
    assert ("train_step", "Net", "Net.first") in paths
    assert ("train_step", "(optimizer) SGD") in paths
    assert ("train_step", UNSAMPLED_NAME) in paths
    estimate = strata.estimate(of_functions=False)
    assert calls(estimate, "Net.first") == 9
    assert calls(estimate, "train_step") == 9


def test_a_compiled_model_is_compiled_as_often_as_without_us() -> None:
    def count_compilations(*levels: Level) -> int:
        torch._dynamo.reset()
        compiled: list[object] = []

        def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
            compiled.append(graph)
            return graph.forward

        model: Any = torch.compile(Net(), backend=backend)
        if not levels:
            train(model, 12)
        else:
            with sampled(*levels):
                train(model, 12)
        return len(compiled)

    alone = count_compilations()
    assert count_compilations(*ALL) == alone
    assert count_compilations(Level.MODULES, Level.FUNCTIONS) == alone
    assert count_compilations(Level.PHASES) == alone


def test_the_same_numbers_as_a_profile_of_the_same_run(clock: FakeClock) -> None:
    clock.cost_per_reading_ns = 0
    work = nn.Sequential(Work(), Work())
    with profile(functions=True) as prof, sampled(Level.FUNCTIONS) as sampler:
        optimizer = torch.optim.SGD(work.parameters(), 0.1)
        for _ in range(6):
            work(torch.ones(2)).sum().backward()
            optimizer.step()
    ours = {row.name: row for row in sampler.strata().whole.rows()}
    theirs = {row.name: row for row in prof.profile.rows()}
    for name in ("Sequential", "Sequential.0", "Sequential.1"):
        for phase in ("forward", "backward"):
            mine, other = ours[name].phases[phase], theirs[name].phases[phase]
            assert mine.calls == other.calls
            assert mine.self_ns == other.self_ns
            assert mine.cumulative_ns == other.cumulative_ns


def test_finding_places_for_new_calls_is_paid_for() -> None:
    net, x = Net(), torch.ones(2, 4)
    with sampled(Level.MODULES) as sampler:
        spent = [sampler.spent_ns]
        for _ in range(2):
            net(x)
            spent.append(sampler.spent_ns)
    first, second = spent[1] - spent[0], spent[2] - spent[1]
    # A tick for each of three modules, and four for each of three functions.
    assert first - second == (3 + 3 * 4) * 1_000
