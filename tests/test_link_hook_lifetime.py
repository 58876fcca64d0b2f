from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers import FORWARD, MyModel, Recorder, inputs
from tests.programs import TORCH, python
from torchprof_hooks import LinkCall, LinkHook, add_hook, delete_hook


def pickled(module: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(module))


def pickled_in_python(module: nn.Module) -> Any:
    return pickle._loads(pickle._dumps(module, 2))  # type: ignore[attr-defined]


def saved(module: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


DUPLICATE = [copy.deepcopy, pickled, pickled_in_python, saved]


def hooks_of(model: nn.Module) -> list[tuple[str, int, object]]:
    """Whatever is in any table of hooks in a model."""
    return [
        (name, number, hook)
        for module in model.modules()
        for name, table in vars(module).items()
        if "hook" in name and isinstance(table, dict)
        for number, hook in table.items()
    ]


@pytest.mark.parametrize("duplicate", DUPLICATE)
def test_nothing_of_a_hook_is_left_in_a_copy(
    duplicate: Callable[[nn.Module], Any],
) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.ReLU())
    for module in model.modules():
        for name in ("one", "two"):
            add_hook(module, Recorder(name))
    before = hooks_of(model)
    twin = duplicate(model)
    assert not hooks_of(twin)
    assert hooks_of(model) == before


def nothing(module: nn.Module, *args: Any) -> None:
    """A hook of the program's own."""


@pytest.mark.parametrize("duplicate", DUPLICATE)
def test_hooks_of_the_program_are_copied(duplicate: Callable[[nn.Module], Any]) -> None:
    model = nn.Linear(3, 3)
    model.register_forward_pre_hook(nothing)
    add_hook(model, Recorder())
    model.register_forward_hook(nothing)
    twin = duplicate(model)
    assert [hook for *_, hook in hooks_of(twin)] == [nothing, nothing]


def test_a_copy_whose_copier_is_kept_loses_the_hook_when_it_is_called() -> None:
    memory: dict[int, Any] = {}
    twin = copy.deepcopy(add_hook(nn.Linear(3, 3), Recorder()), memory)
    assert hooks_of(twin)
    assert twin(inputs()).shape == (2, 3)
    assert not hooks_of(twin)


@pytest.mark.slow
def test_a_saved_model_is_loaded_where_this_package_is_not(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(add_hook(nn.Linear(3, 3), Recorder()), path)
    program = f"""
import sys
sys.modules["torchprof_hooks"] = None  # whoever imports it fails
import torch
model = torch.load({str(path)!r}, weights_only=False)
assert not model._forward_hooks and not model._forward_pre_hooks
# The numbers of hooks begin anew in each process.
seen = []
model.register_forward_pre_hook(lambda module, args: seen.append(args))
model(torch.ones(2, 3))
assert len(seen) == 1
"""
    done = python("-c", program, loaded=TORCH)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("duplicate", DUPLICATE)
def test_the_copy_of_a_hooked_module_is_not_hooked(
    duplicate: Callable[[nn.Module], Any],
) -> None:
    # GIVEN a module with a hook
    model, hook = nn.Sequential(nn.Linear(3, 3)), Recorder()
    add_hook(model, hook)

    # WHEN it is copied
    twin = duplicate(model)

    # THEN the copy works, with no hook of its own, and the hook stays on the original
    hook.taken()
    assert torch.equal(twin(inputs()), model[0](inputs()))
    twin(inputs()).sum().backward()
    assert hook.taken() == []
    with pytest.raises(KeyError):
        delete_hook(twin, "Recorder")
    model(inputs())
    assert hook.taken() == ["pre Sequential", "post Sequential"]


def test_the_copy_of_a_hooked_module_can_be_hooked() -> None:
    hook = Recorder()
    twin = copy.deepcopy(add_hook(MyModel(), Recorder()))

    add_hook(twin, hook)
    twin(inputs())

    assert hook.events == ["added MyModel", "pre MyModel", "post MyModel"]


def test_a_module_dies_with_its_hook_on() -> None:
    hook = Recorder()
    module = add_hook(nn.Linear(3, 3), hook)
    module(inputs()).sum().backward()
    gone = weakref.ref(module)

    del module

    assert gone() is None  # at once, without the garbage collector
    assert hook.events[0] == "added Linear"
    assert "deleted Linear" not in hook.events
    add_hook(nn.Linear(3, 3), hook)  # maybe at the address of the first


def test_a_hook_that_knows_its_module_does_not_keep_it_alive() -> None:
    class Knows(LinkHook):
        def added(self, link: nn.Module | None) -> None:
            self.link = link

    module = add_hook(nn.Linear(3, 3), Knows())
    gone = weakref.ref(module)

    del module
    gc.collect()  # a cycle: the module, its hook, and back

    assert gone() is None


def test_a_thread_wide_hook_keeps_no_module_and_no_output_alive() -> None:
    with Recorder() as hook:
        module = nn.Linear(3, 3)
        output = module(inputs())
        gone = weakref.ref(module), weakref.ref(output)

        del module, output

        assert [reference() for reference in gone] == [None, None]
    assert hook.events[1:-1] == ["pre Linear", "post Linear"]


def test_a_hook_added_to_a_module_before_its_call() -> None:
    model, hook = MyModel(), Recorder()
    model.between = lambda: add_hook(model.l2, hook)

    model(inputs())
    model.between = int

    assert hook.events == ["added Linear", "pre Linear", "post Linear"]


def test_a_hook_added_to_a_module_in_the_middle_of_its_call() -> None:
    model, hook = MyModel(), Recorder()
    model.between = lambda: add_hook(model, hook)

    model(inputs())
    events = hook.taken()
    model.between = int
    model(inputs())

    assert events == ["added MyModel"]  # no post without a pre
    assert hook.events == ["pre MyModel", "post MyModel"]


def test_a_hook_deleted_in_the_middle_of_a_call() -> None:
    model, hook = MyModel(), Recorder()
    add_hook(model, hook)
    model.between = lambda: delete_hook(model, "Recorder")

    model(inputs())
    model.between = int
    model(inputs())

    assert hook.events == ["added MyModel", "pre MyModel", "deleted MyModel"]


def test_a_hook_replaced_in_the_middle_of_a_call() -> None:
    model, first, second = MyModel(), Recorder(), Recorder()

    def replace() -> None:
        delete_hook(model, "Recorder")
        add_hook(model, second)

    add_hook(model, first)
    model.between = replace
    model(inputs())
    model.between = int

    assert first.events == ["added MyModel", "pre MyModel", "deleted MyModel"]
    assert second.events == ["added MyModel"]


def test_a_hook_entered_in_the_middle_of_a_call() -> None:
    model, hook = MyModel(), Recorder()
    model.between = hook.__enter__

    model(inputs())
    events = hook.taken()
    model.between = int
    model(inputs())
    hook.__exit__(None, None, None)

    # l2 is called by something that the hook has not seen: to it, l2 is a root.
    assert events == ["added NoneType", "pre Linear", "post Linear"]
    assert [event.split()[0] for event in hook.events] == [
        *["pre", "pre", "post", "pre", "post", "post"],
        "deleted",
    ]


def test_a_hook_left_in_the_middle_of_a_call() -> None:
    model, hook = MyModel(), Recorder()
    model.between = lambda: hook.__exit__(None, None, None)

    hook.__enter__()
    model(inputs())
    model.between = int
    with hook:
        model(inputs())

    assert hook.events == [
        *["added NoneType", *FORWARD[:3], "deleted NoneType"],
        *["added NoneType", *FORWARD, "deleted NoneType"],
    ]


def test_a_hook_may_delete_itself_when_it_is_called() -> None:
    class Once(Recorder):
        def forward_preprocess(self, args: LinkCall) -> None:
            super().forward_preprocess(args)
            delete_hook(args.link, self.name)

    model, hook = MyModel(), Once()
    add_hook(model, hook)

    model(inputs())
    model(inputs())

    assert hook.events == ["added MyModel", "pre MyModel", "deleted MyModel"]


def test_a_hook_may_hook_modules_when_it_is_called() -> None:
    inner = Recorder("inner")

    class Spreads(LinkHook):
        def forward_preprocess(self, args: LinkCall) -> None:
            if isinstance(args.link, MyModel):
                add_hook(args.link.l1, inner)

    with Spreads():
        MyModel()(inputs())

    assert inner.events == ["added Linear", "pre Linear", "post Linear"]


def test_a_hook_may_call_a_module() -> None:
    other = nn.Identity()

    class Curious(Recorder):
        def forward_postprocess(self, args: LinkCall) -> None:
            super().forward_postprocess(args)
            if args.link is not other:
                other(args.out)

    linear = nn.Linear(3, 3)
    with Curious() as hook:
        linear(inputs())
        linear(inputs())

    calls = ["pre Linear", "post Linear", "pre Identity", "post Identity"]
    assert hook.events[1:-1] == calls * 2
