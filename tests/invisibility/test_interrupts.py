"""An interrupt at any line of ours: the program catches it, and goes on."""

from __future__ import annotations

import dis
import gc
import random
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from linecache import getline
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import torchprof_hooks
from tests.cores import NATIVE_CORE
from tests.fake_clock import FakeClock
from tests.registered import registered
from tests.thorough import IS_THOROUGH
from torchprof_hooks import (
    Profile,
    ProfilerHook,
    function_hooks,
    link_hooks,
    profile,
)
from torchprof_hooks.instruments.functions.operators import OperatorCalls
from torchprof_hooks.kernel.core import CORE
from torchprof_hooks.kernel.passes import engine_patch
from torchprof_hooks.kernel.torch_names.profiler import is_profiler_active
from torchprof_hooks.measure.uninterrupted import _StandIn
from torchprof_hooks.profiler import Profiler
from torchprof_hooks.profiles.memory import NO_MEMORY

Place = tuple[CodeType, int]

#: At how many lines of each case to interrupt, drawn by chance.
PLACES = 120 if IS_THOROUGH else 13
PACKAGE = str(Path(torchprof_hooks.__file__).parent)
SEARCHING = str(Path("torch_names", "profiler.py"))


class Lines:
    """Notes the lines that are run in the package, and raises KeyboardInterrupt at the
    n-th of them, if one is asked for."""

    def __init__(self, interrupt_at: int = 0) -> None:
        self.run: list[Place] = []
        self.place = ""
        self._interrupt_at = interrupt_at
        self._line_before: dict[int, int] = {}  # by frame

    def __enter__(self) -> Lines:
        gc.disable()  # what dies does so at the same line each time
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)
        gc.enable()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._line_before.pop(id(frame), None)
        return self._line if _is_ours(frame.f_code) else None

    def _ends_a_with(self, frame: FrameType) -> bool:
        """Whether the line is a `with` that is run again, to leave it. Python tells of
        it, but handles no signal there: only after calls, and jumps back."""
        line, before = frame.f_lineno, self._line_before.get(id(frame), 0)
        self._line_before[id(frame)] = line
        text = getline(frame.f_code.co_filename, line)
        return line < before and text.lstrip().startswith("with ")

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        does_nothing = frame.f_lasti in _nothing_done(frame.f_code)
        happens = not (
            does_nothing
            or self._ends_a_with(frame)
            or is_delayed()
            or _is_at_its_end(frame)
        )
        if event == "line" and happens:
            self.run.append((frame.f_code, frame.f_lineno))
            if len(self.run) == self._interrupt_at:
                sys.settrace(None)
                self.place = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                raise KeyboardInterrupt
        return self._line


def is_delayed() -> bool:
    """Whether signals wait at the moment, as while a profiler of torch starts."""
    handler = signal.getsignal(signal.SIGINT)
    return isinstance(handler, _StandIn) and handler.delay.is_on


@cache
def _is_ours(code: CodeType) -> bool:
    # Among all objects of the program, a profiler is looked for: a million lines.
    is_search = code.co_name == "<genexpr>" and code.co_filename.endswith(SEARCHING)
    return code.co_filename.startswith(PACKAGE) and not is_search


@cache
def _nothing_done(code: CodeType) -> frozenset[int]:
    """Where a line begins that calls nothing, as `try:`, or that returns what is there.
    Python tells of such a line, but handles no signal there; and right after `with` it
    would not leave what was just entered."""
    found, lines = set(), dict(dis.findlinestarts(code))
    start = 0
    for each in dis.get_instructions(code):
        if each.offset in lines:
            found.add(start := each.offset)
        if not each.opname.startswith(_SIMPLE):
            found.discard(start)
    return frozenset(found)


#: What runs no code.
_SIMPLE = "NOP", "RETURN", "LOAD_CONST", "LOAD_FAST", "STORE_FAST"


def _is_at_its_end(frame: FrameType) -> bool:
    """Whether the program has just left the block, and ours is about to be called to
    end it: nobody could tell this from an interrupt before (docs/limits.md)."""
    text = getline(frame.f_code.co_filename, frame.f_lineno)
    return text.lstrip().startswith("leave_uninterrupted(")


class Program:
    """A loop of two steps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.loader: DataLoader[Any] = DataLoader(list(torch.ones(4, 2)), batch_size=2)  # type: ignore[arg-type]

    def step(self, x: torch.Tensor) -> None:
        torch.relu(self.model(x)).sum().backward()
        self.optimizer.step()

    def has_hooks(self) -> bool:
        """Whether any is on a module of its own."""
        tables = "_forward_pre_hooks", "_forward_hooks", "_forward_hooks_always_called"
        modules = self.model.modules()
        return any(vars(module)[table] for module in modules for table in tables)

    def run(self, entered: Any, catches_inside: bool) -> None:
        try:
            with entered:
                for x in self.loader:
                    try:
                        self.step(x)
                    except KeyboardInterrupt:
                        if not catches_inside:
                            raise
                    if isinstance(entered, ProfilerHook):
                        entered.step()
        except KeyboardInterrupt:
            pass


CASES: dict[str, Callable[[], Any]] = {
    "profile()": profile,
    "profile(functions)": lambda: profile(functions=True),
    "profile(memory)": lambda: profile(memory=True),
    "profile(functions, memory)": lambda: profile(functions=True, memory=True),
    "profile(every)": lambda: profile(steps=1, every=2),
    "link timer": link_hooks.TimerHook,
    "function timer": function_hooks.TimerHook,
    "ProfilerHook": lambda: ProfilerHook(2, trace_first=True),
}


def places(make: Callable[[], Any]) -> list[Place]:
    """The lines of ours that a program runs, in their order."""
    with Lines() as lines:
        Program().run(make(), catches_inside=True)
    return lines.run


def interrupted(make: Callable[[], Any], at: int, catches_inside: bool) -> str:
    """What goes wrong after an interrupt at that line, "" if nothing does."""
    before = registered()

    def left() -> list[str]:
        return [name for name, found in registered().items() if found != before[name]]

    program = Program()
    entered = make()
    with Lines(at) as lines:
        program.run(entered, catches_inside)
    where = f"line {at}: {lines.place} ({catches_inside=})"
    program.run(nullcontext(), catches_inside=False)
    program.run(make(), catches_inside=False)  # another one heals, too
    if left():
        return f"{where} leaves {left()} while it lives"
    program.run(entered, catches_inside=False)
    if left():
        return f"{where} leaves {left()}"
    if is_profiler_active():
        return f"{where} leaves a profiler running"
    if program.has_hooks():
        return f"{where} leaves hooks on modules"
    if isinstance(entered, Profiler) and (below := below_zero(entered.profile)):
        return f"{where} gives {below}"
    return ""


def below_zero(found: Profile) -> list[str]:
    """What is, of the numbers that never can be."""
    names = (
        "calls",
        "self_ns",
        "min_ns",
        "max_ns",
        "duration_ns",
        "squares_ns2",
        "flops",
    )
    return [
        f"{key}: {name} {getattr(totals, name)}"
        for key, totals in found.cells.items()
        for name in names
        if getattr(totals, name) < 0
    ]


def whole(make: Callable[[], Any]) -> Any:
    """What a program that is not interrupted is measured to do; None where hooks keep
    that to themselves."""
    entered = make()
    Program().run(entered, catches_inside=False)
    if not isinstance(entered, Profiler):
        return None
    cells = entered.profile.cells
    # Bytes are those of the process.
    return {key: replace(totals, memory=NO_MEMORY) for key, totals in cells.items()}


@cache
def _warm_up() -> None:
    """What is done once in a process."""
    for make in CASES.values():
        whole(make)


def chosen(make: Callable[[], Any], name: str) -> list[int]:
    """The numbers of the lines at which to interrupt."""
    chance = random.Random(f"{name} {CORE.name}")
    return sorted(chance.sample(range(1, len(places(make)) + 1), PLACES))


def interrupt(*args: object) -> None:
    raise KeyboardInterrupt


def test_a_pass_is_over_although_an_interrupt_came_before_it_was_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each node of all later passes would be booked for it as well."""
    leaf = torch.ones(2, requires_grad=True)
    with profile():
        [tracker] = engine_patch.users
        with monkeypatch.context() as patched:
            if CORE.module is not None:
                patched.setattr(type(tracker), "finish_pass", lambda *_: False)
            patched.setattr(type(tracker.backward), "end", interrupt)
            with pytest.raises(KeyboardInterrupt):
                leaf.sum().backward()
        assert tracker.passes == []
        assert CORE.module is None or tracker.pass_owner is None
        leaf.sum().backward()


@NATIVE_CORE
def test_a_function_that_an_interrupt_kept_from_its_place_is_placed_by_its_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It raised KeyError from then on."""
    x = torch.ones(2)
    with profile(functions=True) as profiler:
        with monkeypatch.context() as patched:
            patched.setattr(OperatorCalls, "_site", interrupt)
            with pytest.raises(KeyboardInterrupt):
                torch.relu(x)
        assert torch.equal(torch.relu(x), x)
    cells = profiler.profile.cells.items()
    calls = [found.calls for (path, _), found in cells if path[-1].startswith("relu")]
    assert calls == [1]


# An interrupt while torch ends its recording leaves nothing to write: that is told.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ProfilerHook cannot write")
@pytest.mark.parametrize("name", CASES)
def test_an_interrupt_anywhere(
    name: str, ticking: FakeClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # traces are written
    # Python prints what comes in the middle of its own work: when something dies.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    make = CASES[name]
    _warm_up()
    expected = whole(make)
    failures = []
    for at in chosen(make, name):
        failures.append(interrupted(make, at, catches_inside=at % 2 == 0))
        if expected and whole(make) != expected:
            failures.append(f"line {at} makes the next profile another one")
    assert "\n".join(filter(None, failures)) == ""
