"""What is wrong with a parameter is said by its name, with what it was and may be."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from torch import nn

from tests.build import profile_of
from torchprof_hooks import (
    Profile,
    ProfilerHook,
    RunArgs,
    SecondOrStepTimer,
    TrainingSession,
    add_hook,
    enable,
    function_hooks,
    link_hooks,
    profile,
    profile_function,
    profiled,
    region,
)
from torchprof_hooks.profiles.options import print_to

Wrong = tuple[Any, ...]

#: Values of another type than what is wanted, and values that cannot be.
NO_FLAG: Wrong = ("x", None, 2)
NO_NUMBER: Wrong = ("5", True)
NOT_POSITIVE: Wrong = (0, -0.5, math.nan)
NO_WHOLE: Wrong = ("5", 1.5, None)
NO_FILE: Wrong = ("out.txt", 3)
NO_CHOICE: Wrong = (None, ["ms"])

PROFILER = profile()
LINK_TIMER = link_hooks.TimerHook()
LINK_MEMORY = link_hooks.MemoryProfileHook("cpu")
FUNCTION_TIMER = function_hooks.TimerHook()


CASES: list[Any] = []


def add(
    call: Callable[..., Any],
    name: str,
    wrong_type: Wrong = (),
    wrong_value: Wrong = (),
    **others: Any,
) -> None:
    """Calls with one wrong parameter each."""
    title = getattr(call, "__qualname__", str(call))
    module = getattr(call, "__module__", "").rpartition("torchprof_hooks.")[2]
    for error, values in ((TypeError, wrong_type), (ValueError, wrong_value)):
        for value in values:
            case = partial(call, **{name: value}, **others), name, value, error
            shown = f"{module}.{title}({name}={value!r:.20})"
            CASES.append(pytest.param(*case, id=shown))


def _decorate(**options: Any) -> Any:
    return profiled(**options)(nn.Linear)


# Profilers and their reports
add(profile, "functions", NO_FLAG)
add(profile, "kernels", NO_FLAG)
add(profile, "memory", (None, 3, 1.5, []), ("gpu", "", "mps:0", "cuda:x"))
add(profile, "steps", (True, 1.5, "3"), (0, -1))
add(profile, "every", (True, 1.5, "3"), (0, 1, 2), steps=2)
add(profile, "every", (), (10,))
add(profile, "peak_flops", ("1e12",), (0, 1e40), functions=True)
add(profile, "items_per_step", (1.5,), (-1,))
for reported in (PROFILER, LINK_TIMER, LINK_MEMORY, FUNCTION_TIMER):
    add(reported.print_report, "unit", NO_CHOICE, ("minutes", ""))
    add(reported.print_report, "file", NO_FILE)
add(PROFILER.print_report, "width", ("a", None, 80.0), (0, -1))
add(PROFILER.print_report, "max_rows", ("a", 1.5, True), (0, -1))
add(PROFILER.print_report, "sort_by", (3, ["calls"]), ("", "name", "Calls"))

# Profiles
add(profile_of().rows, "by", NO_CHOICE, ("layer", "Module"))
add(profile_of().tree, "functions", NO_FLAG)
add(profile_of().scalars, "since", (3, {}))
add(profile_of().merge, "other", (None, 3, {}))
add(profile_of().save, "path", (None, 3, b"x"), ("a\0b",))
add(Profile.load, "path", (None, 3, b"x"), ("a\0b",))

# Hooks
for hooks in (link_hooks, function_hooks):
    add(hooks.TimerHook, "by", NO_CHOICE, ("layer",))
    add(hooks.TimerHook, "history_size", NO_WHOLE, (-1,))
    add(hooks.MemoryProfileHook, "device", (3, [], 1.5), ("gpu", "meta"))
    add(hooks.MemoryProfileHook, "history_size", NO_WHOLE, (-1,))
add(link_hooks.TimerHook, "backward", NO_FLAG)
add(link_hooks.MemoryProfileHook, "by", NO_CHOICE, ("layer",))
add(function_hooks.TimerHook, "phases", NO_FLAG)
add(function_hooks.PrintHook, "end", (None, 3))
add(function_hooks.PrintHook, "file", NO_FILE)
add(function_hooks.PrintHook, "flush", NO_FLAG)

# Sessions
add(SecondOrStepTimer, "every_steps", NO_NUMBER, NOT_POSITIVE)
add(SecondOrStepTimer, "every_secs", NO_NUMBER, NOT_POSITIVE)
add(SecondOrStepTimer, "clock", (3, "x", None), every_steps=1)
add(ProfilerHook, "save_steps", NO_NUMBER, NOT_POSITIVE)
add(ProfilerHook, "save_secs", NO_NUMBER, NOT_POSITIVE)
add(ProfilerHook, "output_dir", (None, 3), ("a\0b",), save_steps=1)
for flag in ("show_dataflow", "show_memory", "trace_first", "compress"):
    add(ProfilerHook, flag, NO_FLAG, save_steps=1)
add(ProfilerHook, "clock", (3,), save_steps=1)
add(TrainingSession, "hooks", (3, [3], ProfilerHook(1), None))
add(TrainingSession, "start_step", NO_WHOLE)
add(RunArgs, "fetches", (5, None, [int]))

# The rest
add(profile_function, "function", (3, None, int))
add(profile_function, "name", (3, []), ("",), function=print)
add(region, "name", (3, None), ("",))
add(profiled, "cls", (3, int, nn.Linear(1, 1)))
add(_decorate, "unit", NO_CHOICE, ("minutes",))
add(_decorate, "file", NO_FILE)
add(add_hook, "target", (3, "fc", None), hook=LINK_TIMER)
add(add_hook, "hook", (3, "x", FUNCTION_TIMER), target=nn.Linear(1, 1))
add(add_hook, "name", (3, []), ("",), target=nn.Linear(1, 1), hook=LINK_TIMER)
for flag in ("n_ops", "n_apply", "output_line_width"):
    add(enable, flag, (), ("x", 0, -1, 1.5, None))
for flag in ("profile_memory", "time_thunks", "ignore_first_call"):
    add(enable, flag, (), ("x", 2, None))
add(enable, "steps", (), ("fast", -1, 0))
add(enable, "every", (), ("fast", 1))
add(enable, "flush_secs", (), ("x", -1, 0, math.nan))
add(enable, "peak_flops", (), ("x", -1, math.nan, math.inf))
add(enable, "items_per_step", (), ("x", -1, 1.5, None))


@pytest.mark.parametrize(("call", "name", "value", "error"), CASES)
def test_what_is_wrong_is_said_by_name(
    call: Callable[[], object], name: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error) as raised:
        call()
    text = str(raised.value)
    shown = value.__qualname__ if isinstance(value, type) else repr(value)
    if name == "hooks" and isinstance(value, list):
        shown = "3"  # the one of them that is wrong
    assert re.search(rf"\b{name}\b", text), text
    assert shown in text, text
    assert re.search(r"must be|must not be", text), text
    assert " of type" not in text  # Python's own


@pytest.mark.parametrize(
    "given", [nn.Linear(1, 1), lambda: None], ids=["a model", "without brackets"]
)
def test_profile_says_what_to_write(given: Any) -> None:
    with pytest.raises(TypeError, match=r"@profile\(\) above .* `with profile\(\):`"):
        profile(given)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (ProfilerHook, ("save_steps", "save_secs")),
        (SecondOrStepTimer, ("every_secs", "every_steps")),
    ],
)
def test_one_of_two(kind: Callable[..., object], names: tuple[str, str]) -> None:
    for values in (1, 2), (None, None):
        with pytest.raises(ValueError, match=r"must be .* the other one None") as found:
            kind(*values)
        for name, value in zip(names, values, strict=True):
            assert f"{name}={value}" in str(found.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda five: link_hooks.TimerHook(history_size=five),
        lambda five: SecondOrStepTimer(every_steps=five),
        lambda five: SecondOrStepTimer(every_secs=float(five)),
        lambda five: TrainingSession(start_step=five),
        lambda five: PROFILER.print_report(full=True, max_rows=five, width=five * 20),
    ],
)
def test_numbers_of_other_types_are_numbers(call: Callable[[Any], object]) -> None:
    call(np.int64(5))


def test_where_standard_error_is_closed_nothing_is_printed_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    print_to(None, "text")
    assert capsys.readouterr().out == ""
    print_to(sys.stdout, "text")
    assert capsys.readouterr().out == "text\n"
