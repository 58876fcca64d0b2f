"""What is recorded of a program: rows, steps, and of planted work the time."""

from __future__ import annotations

import gc
import json
import warnings
from typing import Any

import pytest
import torch

from tests.fake_clock import fake_clock
from tests.recorded.programs import PROGRAMS
from torchprof_hooks import Profile
from torchprof_hooks.profiles.names import AFTER_LAST_NAME
from torchprof_hooks.profiles.totals import Totals


def facts_of(name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What comes of the program with this name, as JSON gives it back."""
    program = PROGRAMS[name]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if program.is_planted:
                with fake_clock(monkeypatch):
                    profiles = program.run()
            else:
                profiles = program.run()
    finally:
        gc.enable()
    found = [fact for profile in profiles for fact in facts(profile, program)]
    restored: list[Any] = json.loads(json.dumps(found))
    return restored


def facts(profile: Profile, program: Any) -> list[Any]:
    """The steps, and a line for each place of the program and phase."""
    times = profile.step_times
    assert sum(t.self_ns for t in profile.cells.values()) == profile.wall_ns
    head = {
        "parts": [[part.name, part.steps] for part in profile.parts],
        "steps": profile.steps,
        "evaluations": times.evaluations,
        "aborted": profile.aborted_calls,
    }
    if program.is_planted:
        head["wall_ns"] = profile.wall_ns
    if program.has_memory:
        assert profile.memory is not None
        head["peak_bytes"] = profile.memory.peak_bytes
    cells = [
        [" > ".join(path), phase, profile.modules[path[-1]].kind, *numbers(t, program)]
        for (path, phase), t in profile.cells.items()
        if phase not in program.without
        and (program.is_planted or path != (AFTER_LAST_NAME,))  # a matter of time
    ]
    return [head, *sorted(cells, key=json.dumps)]


def numbers(totals: Totals, program: Any) -> list[int]:
    """Calls and operations; of planted work, its time; where wanted, bytes."""
    found = [totals.calls, totals.flops]
    if program.is_planted:
        found += [totals.self_ns, totals.duration_ns, totals.min_ns, totals.max_ns]
    if program.has_memory:
        memory = totals.memory
        found += [memory.used_bytes, memory.retained_bytes]
    return found
