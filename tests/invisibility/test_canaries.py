"""Private names of torch are there and do what they are needed for; where one does not,
what depends on it is off, reports say so, and everything else works."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, dataloader

from tests.fake_clock import MS, burn
from tests.functions import Watching
from tests.invisibility.canaries import ALL_CANARIES
from tests.profile_of import profile_of
from torchprof_hooks import Profile, profile
from torchprof_hooks.capture.core import CORE
from torchprof_hooks.capture.torch_names import (
    Canary,
    autograd,
    custom_functions,
    distributed,
)
from torchprof_hooks.capture.torch_names.canaries import CANARIES, not_measured
from torchprof_hooks.profiles.names import BACKWARD_NAME, OUTSIDE_NAME


@pytest.mark.parametrize("canary", ALL_CANARIES, ids=lambda canary: canary.what)
def test_private_names_do_what_they_are_needed_for(canary: Canary) -> None:
    canary.forget()

    assert canary.works(), canary.line()


def test_a_canary_is_asked_once_and_an_exception_is_a_no() -> None:
    asked: list[None] = []

    def check() -> bool:
        asked.append(None)
        raise RuntimeError("torch does something else")

    canary = Canary("something", ("_private",), check)

    assert not canary.has_failed()
    assert not canary.works()
    assert not canary.works()
    assert canary.has_failed()
    assert len(asked) == 1
    assert canary.line() == (
        f"something: torch {torch.__version__} does something else by _private"
    )


def test_a_canary_is_not_seen_by_modes_and_changes_no_state_of_the_program() -> None:
    with torch._C.DisableTorchFunction():
        state = torch.get_rng_state()
    number = autograd.next_sequence_number()
    with Watching() as mode, torch.inference_mode():
        for canary in ALL_CANARIES:
            canary.forget()
            assert canary.works(), canary.line()

    assert mode.seen == []
    assert autograd.next_sequence_number() == number
    assert torch.equal(torch.get_rng_state(), state)


def test_garbage_of_the_program_is_not_collected_while_a_canary_is_tried() -> None:
    """Its thread is waited for by one that may have a lock that a finalizer needs."""
    ended_in: list[threading.Thread] = []

    class Garbage:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            ended_in.append(threading.current_thread())

    def check() -> bool:
        return len([[] for _ in range(100_000)]) > 0

    gc.disable()
    Garbage()
    gc.enable()
    assert Canary("something", (), check).works()
    assert gc.isenabled()

    gc.collect()
    assert ended_in == [threading.current_thread()]


class Twice(torch.autograd.Function):
    """Takes 2 ms, and 3 ms in backward."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        burn(2)
        return value * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        burn(3)
        return grad * 2


class Model(nn.Module):
    """Takes 5 ms besides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        burn(5)
        applied: torch.Tensor = Twice.apply(self.layer(value))
        return applied


@pytest.fixture
def fresh() -> Iterator[None]:
    """Canaries are asked anew, in the test and after it."""
    for canary in CANARIES:
        canary.forget()
    yield
    for canary in CANARIES:
        canary.forget()


def _trained() -> Profile:
    """One step of `Model`, which takes 7 ms forward and 3 ms backward."""
    loader: DataLoader[Any] = DataLoader([torch.ones(2)])  # type: ignore[arg-type]
    model = Model()
    with profile(functions=True) as profiler:
        for batch in loader:
            model(batch).sum().backward()
    assert model.layer.weight.grad is not None
    return profiler.profile


def _booked(profile: Profile) -> dict[tuple[str, str], int]:
    """Times by name and phase, without those that are 0."""
    booked: Counter[tuple[str, str]] = Counter()
    for (path, phase), totals in profile.cells.items():
        booked[path[-1].partition("(")[0] or path[-1], phase] += totals.self_ns
    return dict(+booked)


_WHOLE: dict[tuple[str, str], int] = {
    ("Model", "forward"): 5 * MS,
    ("Twice", "forward"): 2 * MS,
    ("Twice", "backward"): 3 * MS,
}


@pytest.mark.usefixtures("fresh", "clock")
def test_nothing_is_said_where_all_is_well() -> None:
    result = _trained()

    assert _booked(result) == _WHOLE
    assert result.not_measured == ()
    assert not_measured() == ()


# What is hidden, one at a time. Afterwards, all is as before.

Hide = Callable[[pytest.MonkeyPatch], None]
Booked = dict[tuple[str, str], int]


def replaced(owner: Any, name: str, value: Any) -> Hide:
    return lambda patch: patch.setattr(owner, name, value)


def gone(owner: Any, name: str) -> Hide:
    return lambda patch: patch.delattr(owner, name)


def _entry_moved(patch: pytest.MonkeyPatch) -> None:
    entry = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    for function in (torch.autograd.backward, torch.autograd.grad):
        patch.setitem(function.__globals__, "_moved_entry", entry)
        code = function.__code__
        names = tuple(
            "_moved_entry" if name == "_engine_run_backward" else name
            for name in code.co_names
        )
        patch.setattr(function, "__code__", code.replace(co_names=names))


def _no_entry(patch: pytest.MonkeyPatch) -> None:
    _entry_moved(patch)
    patch.delattr(torch.autograd, "_engine_run_backward")


def _no_collectives(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(distributed, "_c10d", None)
    patch.setattr(distributed, "_inside", distributed._inside.__wrapped__)


#: Of a backward, no more than that it took 3 ms is known, if that.
_WITHOUT_BACKWARD = {key: _WHOLE[key] for key in _WHOLE if key[1] == "forward"}
#: What of ours sees calls of custom Functions.
_APPLICATIONS = custom_functions.FunctionApplications

CASES: dict[str, tuple[Hide, str, Booked]] = {
    **{
        f"backward passes, {name}": (hide, "backward passes", _WITHOUT_BACKWARD)
        for name, hide in {
            "no numbers": replaced(autograd, "next_sequence_number", lambda: 0),
            "no nodes": replaced(autograd, "current_autograd_node", lambda: None),
            "their entry is another": _entry_moved,
            "no entry": _no_entry,
        }.items()
    },
    "batches": (gone(dataloader, "_BaseDataLoaderIter"), "waiting for batches", _WHOLE),
    # What this program does not need.
    "recomputation": (
        replaced(autograd, "current_graph_task", lambda: -1),
        "recomputation in threads of devices",
        _WHOLE,
    ),
    "collectives": (_no_collectives, "communication", _WHOLE),
}
if CORE.module is None:  # the other core hears of operators, without a mode
    CASES |= {
        "custom Functions": (
            replaced(_APPLICATIONS, "_made", lambda self: iter(())),
            "custom autograd Functions",
            {("Model", "forward"): 7 * MS, ("TwiceBackward", "backward"): 3 * MS},
        ),
        **{
            f"functions, {name}": (gone(torch._C, name), "functions", _WHOLE)
            for name in (
                "_len_torch_function_stack",
                "_get_function_stack_at",
                "_push_on_torch_function_stack",
                "_pop_torch_function_stack",
            )
        },
    }


@pytest.mark.usefixtures("fresh", "clock")
@pytest.mark.parametrize(("hide", "missing", "expected"), CASES.values(), ids=CASES)
def test_what_needs_a_hidden_name_is_off(
    hide: Hide,
    missing: str,
    expected: Booked,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        hide(patch)
        result = _trained()
    booked = _booked(result)
    if missing == "backward passes":
        outside = [(OUTSIDE_NAME, "outside"), (BACKWARD_NAME, "backward")]
        assert sum(booked.pop(key, 0) for key in outside) == 3 * MS

    assert [line.partition(":")[0] for line in result.not_measured] == [missing]
    assert booked == expected


def test_reports_and_files_say_what_was_not_measured(tmp_path: Path) -> None:
    lines = ("functions: torch 9.0 does something else by _x",)
    made = profile_of(not_measured=lines)
    assert f"not measured: {lines[0]}" in made.report()
    other = profile_of(not_measured=("backward passes: gone", *lines))
    made.save(tmp_path / "made.json")

    assert made.merge(other).not_measured == ("backward passes: gone", *lines)
    assert Profile.load(tmp_path / "made.json") == made
