"""The rest works without any single instrument, and an instrument of a user's own works
with the rest."""

from __future__ import annotations

import gc
import shutil
import weakref
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.cores import NATIVE_CORE
from tests.running import python
from torchprof_hooks import instruments, profile
from torchprof_hooks.hooks import measuring
from torchprof_hooks.kernel.observer import Observer

PACKAGE = Path(torchprof_hooks.__file__).parent
INSTRUMENTS = sorted(
    path.stem
    for path in (PACKAGE / "instruments").iterdir()
    if path.stem not in {"__init__", "__pycache__"}
)

#: Forked for each copy of the package: torch is imported once.
WITHOUT = """
import os, sys, torch
from importlib.util import find_spec

def train(folder, name):
    sys.path.insert(0, folder)
    import torchprof_hooks
    assert torchprof_hooks.__file__.startswith(folder)
    assert find_spec(f"torchprof_hooks.instruments.{name}") is None
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = f"{folder}/profile.json"
    asked = {"functions", "memory"} - {name}
    with torchprof_hooks.profile(save=path, **dict.fromkeys(asked, True)) as prof:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    report = prof.report(full=True)
    assert "Sequential" in report
    assert torchprof_hooks.Profile.load(path).steps == 5

for folder, name in zip(sys.argv[1::2], sys.argv[2::2]):
    child = os.fork()
    if not child:
        try:
            train(folder, name)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(name)
"""


def test_each_instrument_can_be_taken_away(tmp_path: Path) -> None:
    given: list[str] = []
    for name in INSTRUMENTS:
        copy = tmp_path / name / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        taken = copy / "instruments" / name
        if taken.is_dir():
            shutil.rmtree(taken)
        else:
            taken.with_suffix(".py").unlink()
        given += [str(copy.parent), name]
    done = python("-c", WITHOUT, *given, fresh=True)
    assert done.stdout == "", done.stderr
    assert len(INSTRUMENTS) >= 10


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


@NATIVE_CORE
def test_the_example_observes_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its column stands in the place of one that there is. Memory is observed, too: one
    listener does not take the place of another one."""
    lines = str(Observer.__doc__).partition("return:\n")[2].partition("``tensors``")[0]
    example: dict[str, Any] = {}
    exec(dedent(lines).replace('"tensors"', '"flops"'), example)
    chosen = instruments.of_a_profile

    def with_example(**options: Any) -> list[Observer]:
        return [example["ReturnedTensors"](), *chosen(**options)]

    monkeypatch.setattr(measuring, "of_a_profile", with_example)
    model = nn.Sequential(nn.Linear(1, 1), Pair())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with profile(memory=True) as prof:
        for _ in range(5):
            sum(model(torch.ones(1))).sum().backward()
            optimizer.step()
    for part, steps in (prof.profile.start_up, 1), (prof.profile.loop, 4):
        found = {row.name: row.phases["forward"].flops for row in part.rows()}
        assert found["Sequential"] == steps * 2
        assert found["Sequential.0"] == steps
        assert found["Sequential.1"] == steps * 2
    assert prof.profile.memory is not None
    assert prof.profile.memory.step is not None


def test_what_measures_is_freed_as_soon_as_nobody_needs_it() -> None:
    gc.disable()
    try:
        with torchprof_hooks.profile(functions=True, memory=True) as prof:
            nn.Linear(2, 2)(torch.ones(2)).sum().backward()
        [rounds] = prof._threads.rounds
        tracker = weakref.ref(rounds._steps.tracker)
        del rounds, prof
        assert tracker() is None
    finally:
        gc.enable()
