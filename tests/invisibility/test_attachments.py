"""What is put on torch: only while somebody measures, and whatever comes in between."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers import in_thread
from tests.invisible import WITH_BUDGET
from tests.registered import REPLACED, registered
from tests.running import python
from torchprof_hooks import LinkHook, function_hooks, link_hooks, profile
from torchprof_hooks.kernel.attachments import (
    Attachment,
    Attachments,
    Layer,
    Patch,
)
from torchprof_hooks.kernel.torch_names import Place

# Importing

IMPORT = """
import importlib, pkgutil, sys, types
import torch, torch.utils.data, torch.autograd.profiler_legacy, torch._dynamo

KNOWN = {"torch", "warnings", "signal", "threading", "atexit", "gc"}

def functions(owner):
    return {name: id(value) for name, value in vars(owner).items() if callable(value)}

def everything():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in KNOWN and isinstance(module, types.ModuleType):
            found[name] = functions(module)
            for inner in list(vars(module).values()):
                if isinstance(inner, type) and inner.__module__ == name:
                    found[f"{name}.{inner.__qualname__}"] = functions(inner)
    return found

from tests.registered import registered
import tabulate  # what we import, and what that imports, is not what this is about
others = set(sys.modules)
before, hooks = everything(), registered()

import torchprof_hooks
for found in pkgutil.walk_packages(torchprof_hooks.__path__, "torchprof_hooks."):
    # Integrations import what they are for, which may change torch.
    if not found.name.endswith("__main__") and ".integrations." not in found.name:
        importlib.import_module(found.name)
torchprof_hooks.ProfilerHook(1), torchprof_hooks.profile(functions=True)

after = everything()
changed = [
    (where, name)
    for where, known in before.items()
    for name in known.keys() | after[where].keys()
    if known.get(name) != after[where].get(name)
    if f"{where}.{name}" not in sys.modules
]
assert not changed, changed
assert registered() == hooks, registered()
print("the same")
"""


@pytest.mark.slow
def test_importing_changes_nothing_in_torch() -> None:
    run = python("-W", "ignore", "-c", IMPORT)
    assert run.stdout == "the same\n", run.stderr


@pytest.mark.parametrize("measurer", WITH_BUDGET)
def test_everything_is_there_while_it_is_used_and_not_after(measurer: str) -> None:
    before = registered()
    with WITH_BUDGET[measurer]():
        assert registered() != before
        torch.relu(nn.Linear(2, 2)(torch.ones(2))).sum().backward()
    assert registered() == before


#: Whether their modules are there depends on what other tests have imported.
_IMPORTED_LATE = (
    "_maybe_set_eval_frame",
    "install_callbacks",
    "set_kernel_post_grad_provenance_tracing",
    "compile_to_module",
)


def test_the_list_of_what_may_be_replaced_is_complete() -> None:
    known = {(id(owner), name) for owner, name in REPLACED.values()}
    gc.unfreeze()
    objects = gc.get_objects()
    gc.freeze()  # as they were (see tests/fixtures.py)
    patched = {
        (id(place.owner), place.name)
        for found in objects
        if issubclass(type(found), Patch)
        for place in [found._find()]
        if place.owner is not None and place.name not in _IMPORTED_LATE
        if place.owner is not _Torch
    }
    assert patched
    assert patched <= known


# Replaced functions


class _Torch:
    """Stands for a module of torch's, so that none has to be broken."""

    function: Any = None


@pytest.fixture
def original(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    def original() -> list[str]:
        return ["torch"]

    monkeypatch.setattr(_Torch, "function", original)
    return original


def make_patch() -> Patch:
    def make(original: Callable[[], list[str]], layer: Layer) -> Callable[[], Any]:
        def ours() -> list[str]:
            return [*(["ours"] if layer.is_on else []), *original()]

        return ours

    return Patch(lambda: Place(_Torch, "function"), make)


def call() -> Any:
    return vars(_Torch)["function"]()


def test_somebody_else_replaces_the_function_after_us(original: Any) -> None:
    patch = make_patch()
    patch.put_on()
    ours = vars(_Torch)["function"]
    _Torch.function = lambda: ["theirs", *ours()]
    theirs = vars(_Torch)["function"]
    assert call() == ["theirs", "ours", "torch"]
    patch.take_off()
    assert call() == ["theirs", "torch"]
    patch.put_on()  # around theirs, and what is left of the first only passes on
    assert call() == ["ours", "theirs", "torch"]
    patch.take_off()
    assert vars(_Torch)["function"] is theirs
    _Torch.function = ours  # they put back what they found
    assert call() == ["torch"]
    for _ in range(2):
        patch.put_on()
        assert call() == ["ours", "torch"]
        patch.take_off()


# Who wants what


class _User:
    pass


class _Attached(Attachment):
    """meanwhile: done by another thread, which is waited for, while it is put on, as a
    canary is tried."""

    is_on = False
    interrupted = False

    def __init__(self, meanwhile: Callable[[], object] = int) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def put_on(self) -> None:
        thread = threading.Thread(target=self._meanwhile, daemon=True)
        thread.start()
        thread.join(timeout=20)
        assert not thread.is_alive()
        self.is_on = True
        if self.interrupted:
            raise KeyboardInterrupt

    def take_off(self) -> bool:
        if self.interrupted:
            raise KeyboardInterrupt
        self.is_on = False
        return True


def test_what_was_interrupted_is_healed() -> None:
    attachments, attachment = Attachments(), _Attached()
    attachment.interrupted = True
    user = _User()
    for change in (attachments.attach, attachments.detach):
        with pytest.raises(KeyboardInterrupt):
            change(attachment, user)
    assert attachment.is_on
    attachment.interrupted = False
    attachments.retry_cleanup()
    assert not attachment.is_on


@pytest.mark.parametrize("dies", [True, False], ids=["dies", "gives up"])
def test_a_user_goes_in_a_thread_that_somebody_waits_for(dies: bool) -> None:
    """Garbage is collected anywhere: also while another thread attaches something, and
    waits for this one."""
    attachments, attachment = Attachments(), _Attached()
    users, other_user = [_User()], _User()
    attachments.attach(attachment, users[0])

    def go() -> None:
        if not dies:
            attachments.give_up(attachment, users[0])
        users.clear()

    attachments.attach(_Attached(meanwhile=go), other_user)
    assert not attachment.is_on


# Warnings


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_compiled_module_warns_of_the_hooks_of_others_alone() -> None:
    model: Any = torch.compile(nn.Linear(2, 2), backend="eager")
    x = torch.ones(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with profile(), LinkHook():
            model(x)
        assert not [w for w in caught if "global hooks" in str(w.message)]
        handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
        try:
            with profile():
                model(x)
        finally:
            handle.remove()
        model(x)
    assert len([w for w in caught if "global hooks" in str(w.message)]) == 1


# Ends that fit no beginning


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (link_hooks.TimerHook, "hook 'TimerHook'"),
        (function_hooks.TimerHook, "hook 'TimerHook'"),
        (profile, "this profiler"),
    ],
)
def test_left_twice_or_in_another_thread(make: Callable[[], Any], named: str) -> None:
    left = make()
    refused = f"^{named} was not entered in this thread"

    def leave() -> None:
        with pytest.raises(RuntimeError, match=refused):
            left.__exit__(None, None, None)

    with left:
        in_thread(leave)
    leave()
