"""`profile()`: every way to use it."""

from __future__ import annotations

import inspect
import io
import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.fake_clock import MS, burn
from tests.planted import Work
from torchprof_hooks import Profile, Profiler
from torchprof_hooks.profiles.data import ProfileData

pytestmark = pytest.mark.usefixtures("clock")


def calls(profile: ProfileData, name: str = "Sequential") -> int:
    return next(row.calls for row in profile.rows() if row.name == name)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU())


X = torch.ones(2, 3)


def test_wall_time_and_time_outside_are_those_of_the_clock() -> None:
    model = nn.Sequential(Work(10, 15))
    burn(50)
    with torchprof_hooks.profile() as prof:
        burn(20)
        model(torch.ones(3)).sum().backward()
        burn(30)
    burn(50)
    profile = prof.profile
    rows = {row.name: row for row in profile.rows()}
    assert profile.wall_ns == (20 + 10 + 15 + 30) * MS
    assert rows["(outside modules)"].self_ns == (20 + 30) * MS
    assert profile.attributed_ns == (10 + 15) * MS


def test_a_decorated_function_is_measured_at_each_call(model: nn.Module) -> None:
    profiler = torchprof_hooks.profile()

    @profiler
    def step(x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        """One step."""
        result: torch.Tensor = model(x * scale)
        return result

    assert step(X, scale=2.0).shape == (2, 3)
    step(X)
    model(X)  # not measured
    assert calls(profiler.profile) == 2
    assert step.__doc__ == "One step."
    assert list(inspect.signature(step).parameters) == ["x", "scale"]


def test_a_decorated_function_may_call_itself_and_fail(model: nn.Module) -> None:
    profiler = torchprof_hooks.profile()

    @profiler
    def recurse(depth: int) -> None:
        model(X)
        if not depth:
            raise LookupError("planted")
        recurse(depth - 1)

    with pytest.raises(LookupError, match="planted"):
        recurse(4)
    assert calls(profiler.profile) == 5


def test_entering_again_adds_up(model: nn.Module) -> None:
    profiler = torchprof_hooks.profile()
    walls = []
    for _ in range(3):
        with profiler:
            model(X)
            burn(4)
        burn(1)  # not measured
        walls.append(profiler.profile.wall_ns)
    assert calls(profiler.profile) == 3
    assert walls == [4 * MS, 8 * MS, 12 * MS]


def test_entered_twice_at_once_it_measures_once(model: nn.Module) -> None:
    with torchprof_hooks.profile() as profiler:
        with profiler:
            model(X)
            burn(2)
        model(X)
        burn(3)
    assert calls(profiler.profile) == 2
    assert profiler.profile.wall_ns == 5 * MS


def test_two_profilers_at_once(model: nn.Module) -> None:
    with torchprof_hooks.profile() as outer:
        model(X).sum().backward()
        with torchprof_hooks.profile() as inner:
            model(X).sum().backward()
    assert (calls(outer.profile), calls(inner.profile)) == (2, 1)
    backward = {r.name: r.phases["backward"].calls for r in outer.profile.rows()}
    assert backward["Sequential.0"] == 2


def test_one_profiler_in_several_threads(model: nn.Module) -> None:
    profiler = torchprof_hooks.profile()

    def work(enter: bool = True) -> None:
        with profiler if enter else nullcontext():
            for _ in range(5):
                burn(1)
                model(X).sum().backward()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, enter) for enter in (True, True, True, False)]:
            done.result()
    profile = profiler.profile
    assert calls(profile) == 15
    assert profile.wall_ns >= 3 * 5 * MS  # and what others took meanwhile
    assert sum(row.self_ns for row in profile.rows()) == profile.wall_ns


def test_a_profiler_that_was_never_entered_is_empty() -> None:
    report = io.StringIO()
    profiler = torchprof_hooks.profile()
    profiler.print_report(file=report)
    assert profiler.profile.is_empty
    assert "measures what is called in its `with` block" in report.getvalue()
    with profiler:
        burn(1)
    profiler.print_report(file=report)
    for text in (
        "No module was called: there is nothing to report.\n",
        "profile() measures the thread that enters it: other threads need one of ",
    ):
        assert text in report.getvalue()


def test_the_report_goes_where_it_should(
    model: nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    with torchprof_hooks.profile() as profiler:
        model(X)
    file = io.StringIO()
    profiler.print_report(full=True, unit="us", file=file)
    profiler.print_report(full=True, unit="us")
    assert file.getvalue() == capsys.readouterr().out
    (table,) = re.findall(r"^Modules.*\n(.*)\n-+\n(.*)$", file.getvalue(), re.MULTILINE)
    assert table[0].startswith("module")
    assert table[1].startswith("Sequential")


# Copies, which trainers send to the processes that they spawn


def pickled(profiler: Profiler) -> Profiler:
    copied: Profiler = pickle.loads(pickle.dumps(profiler))
    return copied


@pytest.mark.parametrize("copy", [pickled, deepcopy])
def test_a_copy_has_the_same_settings_and_has_not_begun(
    model: nn.Module, tmp_path: Path, copy: Callable[[Profiler], Profiler]
) -> None:
    path = tmp_path / "profile.json"
    with torchprof_hooks.profile(
        save=path,
        functions=True,
        memory="cpu",
        steps=2,
        peak_flops=1e12,
        items_per_step=3,
    ) as profiler:
        model(X)
        copied = copy(profiler)
        model(X)
    assert copied._rates == profiler._rates
    assert copied._settings == profiler._settings
    assert copied.profile.is_empty
    with pytest.raises(RuntimeError, match="not entered in this thread"):
        copied.stop()
    path.unlink()
    with copied:
        model(X)
    assert calls(copied.profile) == calls(Profile.load(path)) == 1
    assert calls(profiler.profile) == 2
