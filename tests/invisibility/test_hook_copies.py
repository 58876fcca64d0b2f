"""Copies of hooks, by themselves and in models: they have not begun."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.cores import NATIVE_CORE
from tests.functions import FunctionRecorder, Tensors
from tests.helpers import Recorder, inputs
from tests.running import TORCH, python
from torchprof_hooks import (
    FunctionCall,
    FunctionHook,
    LinkCall,
    LinkHook,
    add_hook,
    delete_hook,
    function_hooks,
    link_hooks,
)

Duplicate = Callable[[Any], Any]


def pickled(original: Any) -> Any:
    return pickle.loads(pickle.dumps(original))


def saved(original: Any) -> Any:
    file = io.BytesIO()
    torch.save(original, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


DUPLICATES: list[Duplicate] = [copy.deepcopy, pickled, saved]
EACH_WAY = pytest.mark.parametrize("duplicate", DUPLICATES)
EACH_WAY_AND_SHALLOW = pytest.mark.parametrize("duplicate", [copy.copy, *DUPLICATES])

# Hooks


class Modules(LinkHook):
    """Its `__init__` does not call that of the base class, nor need it."""

    name = "Modules"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def forward_preprocess(self, args: LinkCall) -> None:
        self.seen.append(args.path)


class Functions(FunctionHook):
    name = "Functions"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        self.seen.append(function.name)


OURS = (
    link_hooks.TimerHook,
    function_hooks.TimerHook,
    pytest.param(link_hooks.MemoryProfileHook, marks=NATIVE_CORE),
    pytest.param(function_hooks.MemoryProfileHook, marks=NATIVE_CORE),
)


def step() -> None:
    F.relu(nn.Linear(3, 3)(inputs())).sum().backward()


def use(hook: Any) -> None:
    """Have it active for a thread, and for a target."""
    with hook:
        step()
    target: Any = nn.Linear(3, 3) if isinstance(hook, LinkHook) else F.relu
    add_hook(target, hook)
    step()
    delete_hook(target, hook.name)


@EACH_WAY_AND_SHALLOW
@pytest.mark.parametrize("make", [Modules, Functions])
def test_a_copy_is_told_of_its_calls_alone(
    duplicate: Duplicate, make: Callable[[], Any]
) -> None:
    hook = make()
    use(hook)
    before = list(hook.seen)

    twin = duplicate(hook)

    assert twin.seen == before  # what is the user's is copied
    hook.seen, twin.seen = [], []
    with twin:
        step()
    assert not hook.seen
    assert twin.seen
    with hook, Recorder(), FunctionRecorder():
        twin.seen.clear()
        step()
    assert not twin.seen


@EACH_WAY_AND_SHALLOW
@pytest.mark.parametrize("make", OURS)
def test_a_copy_has_measured_nothing(
    duplicate: Duplicate, make: Callable[..., Any]
) -> None:
    hook = make(history_size=3)
    use(hook)
    before = hook.call_history, str(hook.summary())

    twin = duplicate(hook)

    assert not twin.call_history
    assert not twin.summary()
    use(twin)
    assert twin.summary().keys() == hook.summary().keys()
    assert len(twin.call_history) <= 3  # as it was made
    assert (hook.call_history, str(hook.summary())) == before


@EACH_WAY_AND_SHALLOW
def test_the_copy_of_an_active_hook_is_not_active(duplicate: Duplicate) -> None:
    hook = Modules()
    with hook:
        twin = duplicate(hook)
        step()
        with pytest.raises(RuntimeError, match="was not entered"):
            twin.__exit__(None, None, None)
    assert hook.seen == ["Linear"]


# Models with hooks


@EACH_WAY
def test_the_copy_of_a_model_is_not_measured(duplicate: Duplicate) -> None:
    model, hook = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), Recorder()
    for module in model.modules():
        add_hook(module, hook)
    hook.taken()

    twin = duplicate(duplicate(model))

    twin(inputs()).sum().backward()
    assert hook.taken() == []
    with pytest.raises(KeyError):
        delete_hook(twin, hook.name)
    assert torch.equal(twin(inputs()), model(inputs()))
    assert hook.taken()


@pytest.mark.slow
def test_a_saved_model_is_loaded_where_this_package_is_not(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(add_hook(nn.Linear(3, 3), Recorder()), path)
    program = f"""
import sys
sys.modules["torchprof_hooks"] = None  # whoever imports it fails
import torch
model = torch.load({str(path)!r}, weights_only=False)
# The numbers of hooks begin anew in each process.
seen = []
model.register_forward_pre_hook(lambda module, args: seen.append(args))
model(torch.ones(2, 3))
assert len(seen) == 1
"""
    done = python("-c", program, loaded=TORCH)
    assert done.returncode == 0, done.stderr
