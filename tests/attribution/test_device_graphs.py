"""Backward passes in the threads that the engine has for devices, also where they make
graphs of their own: see `tests.attribution.device_thread`."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.cores import NATIVE_CORE
from tests.running import python

STEPS = 3
#: Of each layer, in milliseconds.
BACKWARD = {"Net.a": 1, "Net.b": 20, "Net.c": 2}
#: What the backward of that takes, so many times as long.
OF_BACKWARD = 100

places = pytest.mark.parametrize(
    "place", [pytest.param("device", marks=NATIVE_CORE), "cpu"]
)
each_functions = pytest.mark.parametrize("functions", [False, True])


@cache
def answers() -> dict[tuple[Any, ...], Any]:
    """What is measured of each program: calls and milliseconds, by row and phase."""
    done = python("-m", "tests.attribution.device_thread")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {tuple(question): answer for question, answer in lines}


@each_functions
@places
@pytest.mark.parametrize("program", ["plain", "checkpoint"])
def test_calls(program: str, place: str, functions: bool) -> None:
    """A checkpoint is outside of modules, and calls them in the device's thread."""
    found = answers()[program, place, functions]
    recomputed = STEPS if program == "checkpoint" else 0
    for name in ("Net", *BACKWARD):
        calls = {phase: calls for phase, (calls, _) in found[name].items()}
        assert calls == {"forward": STEPS, "backward": STEPS, "recompute": recomputed}


#: How often the planted work of a layer is its backward: where gradients of gradients
#: are asked for, the work of the first backward has one as well, which is its own, too.
#: What is made inside of a backward, and what nobody uses, hides no owner.
TIMES = {
    "plain": 1,
    "checkpoint": 1,
    "outside": 2 + OF_BACKWARD,
    "inside": 2 + OF_BACKWARD,
    "alone": 2 + OF_BACKWARD,
    "backward": 1,
    "nothing": 2,
}


@each_functions
@places
@pytest.mark.parametrize("program", TIMES)
def test_backward_belongs_to_whose_forward_or_backward_made_it(
    program: str, place: str, functions: bool
) -> None:
    found = answers()[program, place, functions]
    layers = {"Alone": 1} if program == "alone" else BACKWARD
    expected = {name: STEPS * TIMES[program] * ms for name, ms in layers.items()}
    if program != "alone":
        expected["Net"] = sum(expected.values())
    backward = {name: row["backward"][1] for name, row in found.items()}
    if program == "nothing":  # the graph of the loss is outside of modules
        backward = {name: backward[name] for name in expected}
    assert {name: ms for name, ms in backward.items() if ms} == expected
