"""Profilers and hooks that nobody ends, and nobody has any more."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers import Recorder, in_thread
from tests.registered import registered
from torchprof_hooks import function_hooks, link_hooks, profile

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"functions": True},
    {"memory": True, "functions": True},
    {"steps": 1},
    {"steps": 1, "every": 3, "functions": True},
)
each_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


def step(inside: Callable[[], object] = int) -> None:
    """One of a model; `inside` is called in the middle of forward and backward."""

    def hook(*_: object) -> None:
        inside()

    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    model[1].register_forward_pre_hook(hook)
    loss = model(torch.ones(2, 3)).sum()
    loss.register_hook(hook)
    loss.backward()


def size(found: Any) -> int:
    return found if isinstance(found, int) else len(found)


@each_option
@pytest.mark.parametrize("begin", ["start", "__enter__"])
def test_a_profiler_that_is_dropped_is_off(options: Any, begin: str) -> None:
    before = registered()
    prof = profile(**options)
    getattr(prof, begin)()
    step()

    del prof

    assert registered() == before  # at once, without the garbage collector


@each_option
def test_a_profiler_that_is_started_again_and_again(options: Any) -> None:
    found = []
    for _ in range(6):  # as by a cell of a notebook
        prof = profile(**options)
        prof.start()
        step()
        found.append(registered())
    for what in ("function modes", "notified of modules", "notified of collections"):
        assert size(found[-1][what]) == size(found[0][what])
    prof.stop()


@each_option
@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a_profiler_that_is_dropped_in_the_middle(options: Any, place: str) -> None:
    held = [profile(**options)]
    held[0].start()
    step()
    places = iter(["forward", "backward"])

    step(lambda: held.clear() if next(places) == place else None)

    assert not held
    step()


def test_a_profiler_that_is_dropped_by_another_thread() -> None:
    held = [profile(functions=True)]
    held[0].start()
    step()
    in_thread(held.clear)
    with profile(functions=True):  # the other thread could not take the mode off here
        step()


@each_option
def test_a_thread_that_ends_without_a_stop(options: Any) -> None:
    def begin() -> None:
        profile(**options).start()
        step()
        link_hooks.TimerHook().__enter__()
        function_hooks.TimerHook().__enter__()
        step()

    before = registered()
    in_thread(begin)
    until = time.monotonic() + 10
    while registered() != before and time.monotonic() < until:
        time.sleep(0.01)  # the thread's stack of modes ends a moment after the thread


def test_a_hook_that_is_collected_while_torch_takes_its_mode_off_for_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python collects garbage in the middle of anything."""
    held = [function_hooks.TimerHook()]
    held[0].__enter__()
    overrides: Any = torch.overrides
    original = overrides._pop_mode_temporarily

    def collect_first() -> Any:
        held.clear()
        gc.collect()
        return original()

    x = torch.ones(2)
    with monkeypatch.context() as patch:
        patch.setattr(overrides, "_pop_mode_temporarily", collect_first)
        assert torch.equal(torch.nn.functional.relu(x), x)


def test_what_only_the_with_statement_has_goes_on() -> None:
    before = registered()
    with profile(functions=True):
        step()
        assert registered() != before
    with Recorder("dropped"):
        step()
        hooked = registered()
        step()
        assert registered() == hooked
