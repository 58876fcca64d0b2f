"""Where calls of modules are seen: a place of torch's, which else is as it was, and
where what programs do comes out as it does alone."""

from __future__ import annotations

import copy
import pickle
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE
from tests.fake_clock import MS, burn
from torchprof_hooks import profile
from torchprof_hooks.kernel.interception import interception
from torchprof_hooks.kernel.subscriptions import KEPT_OUT
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.profiles.data import ProfileData

pytestmark = pytest.mark.usefixtures("ticking")

X = torch.ones(1, 2)
IMPLEMENTATION = "_compiled_call_impl"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, *, fails: bool = False) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        burn(2)
        if fails:
            raise ValueError("it does")
        return y


def plain() -> nn.Module:
    """One whose code torch can compile as a whole."""
    return nn.Sequential(nn.Linear(2, 2))


def in_place() -> Any:
    return vars(nn.Module)[IMPLEMENTATION]


def calls(found: ProfileData) -> dict[str, int]:
    return {row.name: row.calls for row in found.rows() if row.kind == "module"}


def check_that_calls_are_seen() -> None:
    with profile() as prof:
        Net()(X)
    assert calls(prof.profile) == {"Net": 1, "Net.inner": 1}


@NATIVE_CORE
def test_it_stays_and_shows_calls_to_nobody() -> None:
    with profile():
        check_that_calls_are_seen()
    there = in_place()
    assert isinstance(there, property)
    for _ in range(2):
        assert getattr(nn.Module, IMPLEMENTATION) is None  # as without us
        assert getattr(Net(), IMPLEMENTATION) is None
        check_that_calls_are_seen()
        assert in_place() is there
    assert not interception.users


def test_while_somebody_else_has_that_place_reports_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = property(lambda module: None)
    monkeypatch.setattr(nn.Module, IMPLEMENTATION, other)
    with profile() as prof:
        assert in_place() is other
        Net()(X).sum().backward()
    with prof:
        assert in_place() is other
    assert calls(prof.profile) == {}
    assert prof.profile.not_measured.count(KEPT_OUT) == 1
    assert KEPT_OUT in " ".join(prof.report().split())


def test_the_programs_exception_is_the_programs_own() -> None:
    model = Net()
    seen: list[ValueError] = []
    with profile() as prof:
        try:
            try:
                raise KeyError("first")
            except KeyError:
                model(X, fails=True)
        except ValueError as raised:
            seen.append(raised)
        assert sys.exc_info() == (None, None, None)
    [error] = seen
    assert (str(error), error.__cause__) == ("it does", None)
    assert isinstance(error.__context__, KeyError)
    frames = traceback.walk_tb(error.__traceback__)
    names = [frame.f_code.co_name for frame, _ in frames]
    assert names[-1] == "forward"
    assert len(names) == len(set(names))  # nothing of ours, and nothing twice
    assert prof.profile.aborted_calls == 1


def test_models_that_are_compiled_in_place() -> None:
    model = plain()
    with profile() as prof:
        model.compile(backend="eager")
        assert getattr(model, IMPLEMENTATION)  # as the program has made it
        expected = [model(X).tolist() for _ in range(2)]
        delattr(model, IMPLEMENTATION)
        with pytest.raises(AttributeError):
            delattr(model, IMPLEMENTATION)
        assert [model(X).tolist()] == expected[1:]
        assert not getattr(model, IMPLEMENTATION)
    assert calls(prof.profile)["Sequential"] == 3


def test_copies_and_files_have_nothing_of_ours() -> None:
    model = Net()
    with profile():
        model(X)
        saved = pickle.dumps(model)
        others = copy.deepcopy(model), copy.copy(model), pickle.loads(saved)
        for other in others:
            assert vars(other).keys() == vars(Net()).keys()
            assert other(X).tolist() == model(X).tolist()
    assert b"torchprof_hooks" not in saved


def test_a_model_with_a_call_of_its_own() -> None:
    class Own(Net):
        def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
            return super()._call_impl(*args, **kwargs) + 1

    model, alone = Own(), Net()
    alone.load_state_dict(model.state_dict())
    with profile() as prof:
        assert model(X).tolist() == (alone(X) + 1).tolist()
        vars(model)["_call_impl"] = lambda x: x
        assert model(X) is X
    assert calls(prof.profile)["Own"] == 2


def test_arguments_of_any_number() -> None:
    class Sum(nn.Module):
        def forward(self, *numbers: int, **more: int) -> int:
            return sum(numbers) + sum(more.values())

    model = Sum()
    with profile() as prof:
        for count in range(12):
            assert model(*range(count), a=1, b=2) == sum(range(count)) + 3
            assert model(*range(count)) == sum(range(count))
    assert calls(prof.profile) == {"Sum": 24}


@pytest.mark.parametrize("whole", [False, True])
def test_compiled_code_is_the_same_with_and_without_us(whole: bool) -> None:
    model, graphs = plain(), []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    with profile():
        code = model if whole else lambda x: model(x) * 1
        compiled = torch.compile(code, backend=backend)
        first = compiled(X).tolist()
    made = len(graphs)
    assert compiled(X).tolist() == first
    with profile():
        assert compiled(X).tolist() == first
    assert len(graphs) == made


# What programs do there


def test_a_program_that_asks_whether_modules_are_compiled_is_told_so() -> None:
    model: Any = Net()
    with profile() as prof:
        assert model._compiled_call_impl is None
        saved, model._compiled_call_impl = model._compiled_call_impl, None
        model(X)
        model._compiled_call_impl = saved
        model(X)
        model._compiled_call_impl = model.forward
        assert model._compiled_call_impl == model.forward
        model._compiled_call_impl = saved
    model(X)
    assert calls(prof.profile) == {"Net": 2, "Net.inner": 2}


class Tree(nn.Module):
    """Calls itself, so many times, and takes 2 ms around that."""

    def forward(self, x: torch.Tensor, below: int) -> torch.Tensor:
        burn(1)
        y: torch.Tensor = self(x, below - 1) if below else x * 1
        burn(1)
        return y


def test_a_module_that_calls_itself() -> None:
    with profile() as prof:
        Tree()(X, 3)
    assert prof.profile.aborted_calls == 0
    own_ms = {
        len(path): totals.self_ns // MS
        for (path, phase), totals in prof.profile.cells.items()
        if phase == "forward"
    }
    assert own_ms == dict.fromkeys(range(1, 5), 2)


def go_on_after_failing(model: Net) -> None:
    with suppress(ValueError):
        model(X, fails=True)
    for _ in range(1000):  # handlers of signals run between two lines
        burn(1)


def test_an_interrupt_at_the_end_of_a_call_that_failed_comes_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(self: Tracker) -> None:
        raise KeyboardInterrupt

    model = Net()
    with profile():
        monkeypatch.setattr(Tracker, "count_if_aborted", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go_on_after_failing(model)


def test_what_a_generator_handles_stays_its_own() -> None:
    model = Net()

    def generate() -> Iterator[BaseException | None]:
        with suppress(ValueError):
            model(X, fails=True)
        yield None
        yield sys.exc_info()[1]

    with profile():
        generated = generate()
        try:
            raise KeyError("around the first")
        except KeyError:
            next(generated)
        assert next(generated) is None
