"""Profilers and hooks that nobody ends, and nobody has any more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers import Recorder
from tests.registered import registered
from torchprof_hooks import function_hooks, link_hooks, profile

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"functions": True},
    {"memory": True, "functions": True},
    {"max_overhead": 0.02},
    {"max_overhead": 0.5, "functions": True},
)


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


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("begin", ["start", "__enter__"])
def test_a_profiler_that_is_dropped_is_off(options: dict[str, Any], begin: str) -> None:
    before = registered()
    prof = profile(**options)
    getattr(prof, begin)()
    step()

    del prof

    assert registered() == before  # at once, without the garbage collector


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_profiler_that_is_started_again_and_again(options: dict[str, Any]) -> None:
    prof = profile(**options)
    prof.start()
    step()
    once = registered()
    for _ in range(5):  # as by a cell of a notebook
        prof = profile(**options)
        prof.start()
        step()
    again = registered()
    for what in ("function modes", "who sees modules", "told of collections"):
        assert size(again[what]) == size(once[what])
    prof.stop()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a_profiler_that_is_dropped_in_the_middle(
    options: dict[str, Any], place: str
) -> None:
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

    other = threading.Thread(target=held.clear)
    other.start()
    other.join()

    with profile(functions=True):  # the other thread could not take the mode off here
        step()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_thread_that_ends_without_a_stop(options: dict[str, Any]) -> None:
    def begin() -> None:
        profile(**options).start()
        step()
        link_hooks.TimerHook().__enter__()
        function_hooks.TimerHook().__enter__()
        step()

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()


def test_a_profiler_that_only_the_with_statement_has() -> None:
    before = registered()
    with profile(functions=True):
        step()
        assert registered() != before


def test_a_hook_that_only_the_with_statement_has() -> None:
    with Recorder("dropped"):
        step()
        before = registered()
        step()
        assert registered() == before


def test_a_profiler_that_is_kept_measures_on() -> None:
    prof = profile()
    prof.start()
    for _ in range(3):
        step()
    prof.stop()
    assert {row.name: row.calls for row in prof.profile.rows()}["Sequential"] == 3
