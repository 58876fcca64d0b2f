from __future__ import annotations

import re
from typing import Any

import pytest
from torch import nn

import torchprof_hooks
from tests.helpers import FORWARD, MyModel, Recorder, in_thread, inputs
from torchprof_hooks import LinkHook, add_hook, delete_hook


def test_order_of_callbacks_thread_wide() -> None:
    model = MyModel()

    with Recorder() as hook:
        model(inputs())

    assert hook.events == ["added NoneType", *FORWARD, "deleted NoneType"]


def test_order_of_callbacks_on_one_module() -> None:
    model, hook = MyModel(), Recorder()

    add_hook(model, hook)
    model(inputs())
    delete_hook(model, "Recorder")

    expected = ["added MyModel", "pre MyModel", "post MyModel", "deleted MyModel"]
    assert hook.events == expected


def test_entering_returns_the_hook_and_add_hook_the_module() -> None:
    model, hook = MyModel(), Recorder()

    with hook as entered:
        assert entered is hook
    assert add_hook(model, hook) is model


def test_a_name_is_taken_once_thread_wide() -> None:
    with Recorder():
        second = Recorder()
        with pytest.raises(KeyError, match="'Recorder' already exists"), second:
            pass
        assert second.events == []
        with Recorder("another name"):
            pass


def test_a_name_is_taken_once_per_module() -> None:
    model, second = MyModel(), Recorder()
    add_hook(model, Recorder())

    with pytest.raises(KeyError, match="'Recorder' already exists"):
        add_hook(model, second)
    with pytest.raises(KeyError, match="'own' already exists"):
        add_hook(add_hook(model, Recorder(), "own"), second, name="own")

    assert second.events == []
    add_hook(model.l1, second)  # another module: free


def test_deleting_an_unknown_name_tells_the_known_ones() -> None:
    model = add_hook(MyModel(), Recorder())

    with pytest.raises(KeyError, match=r"no hook 'Timer' here; .*: 'Recorder'"):
        delete_hook(model, "Timer")
    with pytest.raises(KeyError, match=r"no hook 'Recorder' here; .*: none"):
        delete_hook(model.l1, "Recorder")
    delete_hook(model, "Recorder")
    with pytest.raises(KeyError, match=r"no hook 'Recorder' here; .*: none"):
        delete_hook(model, "Recorder")


def test_a_hook_can_be_registered_under_another_name() -> None:
    model, hook = MyModel(), Recorder()

    add_hook(add_hook(model, hook, name="first"), hook, name="second")
    model(inputs())
    delete_hook(model, "first")
    model(inputs())

    assert hook.events == [
        *["added MyModel"] * 2,
        *["pre MyModel"] * 2,
        *["post MyModel"] * 2,
        "deleted MyModel",
        "pre MyModel",
        "post MyModel",
    ]


@pytest.mark.parametrize("wrong", [None, "hook", print, nn.ReLU()], ids=repr)
def test_only_hooks_can_be_added(wrong: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(f"modules), not {wrong!r}")):
        add_hook(MyModel(), wrong)


def test_a_hook_class_is_not_a_hook() -> None:
    with pytest.raises(TypeError, match="modules\\), not the class Recorder"):
        add_hook(MyModel(), Recorder)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, "model", nn.Linear], ids=str)
def test_only_modules_can_be_hooked(wrong: Any) -> None:
    hook = Recorder()

    with pytest.raises(TypeError, match=r"target must be .* a torch\.nn\.Module"):
        add_hook(wrong, hook)
    with pytest.raises(TypeError, match=r"target must be .* a torch\.nn\.Module"):
        delete_hook(wrong, "Recorder")
    assert hook.events == []


def test_a_hook_on_a_module_replaces_the_thread_wide_one_there_only() -> None:
    model, local = MyModel(), Recorder()
    add_hook(model.l1, local)

    with Recorder() as everywhere:
        model(inputs())
        delete_hook(model.l1, "Recorder")
        model(inputs())

    without_l1 = [event for event in FORWARD if not event.endswith("l1")]
    assert everywhere.events[1:-1] == [*without_l1, *FORWARD]
    expected = ["added Linear", "pre Linear", "post Linear", "deleted Linear"]
    assert local.events == expected


def test_a_hook_of_another_name_on_a_module_is_called_as_well() -> None:
    model, local = MyModel(), Recorder()
    add_hook(model.l1, local, name="another")

    with Recorder() as everywhere:
        model(inputs())

    assert everywhere.events[1:-1] == FORWARD
    assert local.events == ["added Linear", "pre Linear", "post Linear"]


def test_deleted_hooks_are_not_called() -> None:
    model, local = MyModel(), Recorder()
    with Recorder() as hook:
        add_hook(model, local, "local")
        delete_hook(model, "local")
    hook.taken(), local.taken()

    model(inputs()).sum().backward()

    assert hook.events == local.events == []


def test_hooks_of_one_thread_are_not_called_in_another() -> None:
    model = MyModel()
    with Recorder() as hook:
        in_thread(lambda: model(inputs()).sum().backward())
        in_thread(lambda: Recorder().__enter__().__exit__(None, None, None))

    assert hook.events == ["added NoneType", "deleted NoneType"]


def test_a_hook_on_a_module_is_called_in_every_thread() -> None:
    hook = Recorder()
    model = add_hook(MyModel(), hook)
    hook.taken()

    in_thread(lambda: model(inputs()))
    model(inputs())

    assert hook.events == ["pre MyModel", "post MyModel"] * 2


def test_the_public_names() -> None:
    assert torchprof_hooks.LinkHook is LinkHook
    assert LinkHook().name == "LinkHook"
