from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchprof_hooks
from tests.functions import CUBE, Cube, FunctionRecorder, backward, forward, x
from tests.helpers import Recorder, in_thread
from torchprof_hooks import FunctionHook, LinkHook, add_hook, delete_hook


def test_order_of_callbacks_thread_wide() -> None:
    with FunctionRecorder() as hook:
        x().exp().sum().backward()

    assert hook.events == [
        "added NoneType",
        *forward("exp", "sum"),
        *backward("sum", "exp"),
        "deleted NoneType",
    ]


def test_order_of_callbacks_on_one_torch_function() -> None:
    hook = FunctionRecorder()

    add_hook(F.linear, hook)
    F.linear(x(), x(5, 3)).exp().sum().backward()
    delete_hook(F.linear, "FunctionRecorder")

    assert hook.events == [
        "added linear",
        *forward("linear"),
        *backward("linear"),
        "deleted linear",
    ]


def test_order_of_callbacks_on_one_class() -> None:
    hook = FunctionRecorder()

    add_hook(Cube, hook)
    Cube.apply(x()).exp().sum().backward()
    delete_hook(Cube, "FunctionRecorder")

    assert hook.events == [
        "added Cube",
        *forward("Cube"),
        *backward("Cube"),
        "deleted Cube",
    ]


def test_entering_returns_the_hook_and_add_hook_the_target() -> None:
    hook, loss = FunctionRecorder(), x().sum()

    with hook as entered:
        assert entered is hook
    for target in (F.linear, Cube, torch.Tensor.add, loss.grad_fn):
        assert add_hook(target, hook) is target
        delete_hook(target, "FunctionRecorder")


def test_a_name_is_taken_once_thread_wide() -> None:
    with FunctionRecorder():
        second = FunctionRecorder()
        with pytest.raises(KeyError, match="'FunctionRecorder' already exists"), second:
            pass
        assert second.events == []
        with FunctionRecorder("another name"):
            pass


def test_hooks_on_modules_have_names_of_their_own() -> None:
    with FunctionRecorder("same"), Recorder("same") as links:
        nn.Identity()(x())

    assert links.events[1:-1] == ["pre Identity", "post Identity"]


@pytest.mark.parametrize("target", [F.linear, Cube, torch.Tensor.add])
def test_a_name_is_taken_once_per_target(target: Any) -> None:
    second = FunctionRecorder()
    add_hook(target, FunctionRecorder())
    add_hook(target, FunctionRecorder(), name="own")

    with pytest.raises(KeyError, match="'FunctionRecorder' already exists"):
        add_hook(target, second)
    with pytest.raises(KeyError, match="'own' already exists"):
        add_hook(target, second, name="own")

    assert second.events == []
    add_hook(F.relu, second)  # another function: free
    delete_hook(F.relu, "FunctionRecorder")
    delete_hook(target, "FunctionRecorder")
    delete_hook(target, "own")


@pytest.mark.parametrize("target", [F.linear, Cube, torch.Tensor.add])
def test_deleting_an_unknown_name_tells_the_known_ones(target: Any) -> None:
    add_hook(target, FunctionRecorder())

    with pytest.raises(KeyError, match=r"no hook 'T' here; .*: 'FunctionRecorder'"):
        delete_hook(target, "T")
    with pytest.raises(KeyError, match=r"no hook 'FunctionRecorder' here; .*: none"):
        delete_hook(F.relu, "FunctionRecorder")
    delete_hook(target, "FunctionRecorder")
    with pytest.raises(KeyError, match=r"no hook 'FunctionRecorder' here; .*: none"):
        delete_hook(target, "FunctionRecorder")


def test_a_hook_can_be_registered_under_another_name() -> None:
    hook = FunctionRecorder()

    add_hook(add_hook(Cube, hook, name="first"), hook, name="second")
    Cube.apply(x())
    delete_hook(Cube, "first")
    Cube.apply(x())
    delete_hook(Cube, "second")

    twice = ["pre Cube"] * 2 + ["post Cube"] * 2
    assert hook.events == [
        *["added Cube"] * 2,
        *twice,
        "deleted Cube",
        *forward("Cube"),
        "deleted Cube",
    ]


def test_two_hooks_at_once_are_both_called() -> None:
    with FunctionRecorder("first") as first, FunctionRecorder("second") as second:
        Cube.apply(x()).sum().backward()

    expected = [*CUBE, *forward("sum"), *backward("sum", "Cube")]
    assert first.events[1:-1] == second.events[1:-1] == expected


def test_two_hooks_on_one_target_are_both_called() -> None:
    first, second = FunctionRecorder(), FunctionRecorder()
    add_hook(add_hook(F.relu, first), second, name="second")

    F.relu(x()).sum().backward()
    delete_hook(F.relu, "FunctionRecorder")
    F.relu(x())
    delete_hook(F.relu, "second")

    once = [*forward("relu"), *backward("relu")]
    assert first.events[1:-1] == once
    assert second.events[1:-1] == [*once, *forward("relu")]


@pytest.mark.parametrize(
    "targets", [(F.relu, F.silu), (F.silu, F.relu), (F.relu, Cube)]
)
def test_one_hook_on_two_targets(targets: tuple[Any, Any]) -> None:
    hook = FunctionRecorder()
    for target in targets:
        add_hook(target, hook)

    second = Cube.apply if Cube in targets else F.silu
    second(F.relu(x())).sum().backward()
    for target in targets:
        delete_hook(target, "FunctionRecorder")

    name = "Cube" if Cube in targets else "silu"
    assert hook.events[2:-2] == [*forward("relu", name), *backward(name, "relu")]


def test_a_hook_entered_again_is_called_again() -> None:
    hook = FunctionRecorder()
    for _ in range(2):
        with hook:
            x().exp()
        x().exp()  # not seen

    assert hook.events == ["added NoneType", *forward("exp"), "deleted NoneType"] * 2


@pytest.mark.parametrize("target", [F.relu, Cube])
def test_a_hook_on_a_target_replaces_the_thread_wide_one_there_only(
    target: Any,
) -> None:
    call = Cube.apply if target is Cube else F.relu
    name, local = target.__name__, FunctionRecorder()
    inside = forward("mul", "mul") if target is Cube else []
    add_hook(target, local)

    with FunctionRecorder() as everywhere:
        call(x()).exp().sum().backward()
        replaced = everywhere.taken()
        delete_hook(target, "FunctionRecorder")
        call(x()).exp().sum().backward()

    assert replaced[1:] == [*inside, *forward("exp", "sum"), *backward("sum", "exp")]
    assert everywhere.events[:-1] == [
        *[f"pre {name}", *inside, f"post {name}"],
        *forward("exp", "sum"),
        *backward("sum", "exp", name),
    ]
    assert local.events[1:-1] == [*forward(name), *backward(name)]


@pytest.mark.parametrize("target", [F.relu, Cube])
def test_a_hook_put_on_a_target_that_the_thread_wide_one_has_seen(target: Any) -> None:
    call = Cube.apply if target is Cube else F.relu
    local = FunctionRecorder()
    with FunctionRecorder() as everywhere:
        call(x())
        everywhere.taken()
        add_hook(target, local)
        call(x()).sum().backward()
        delete_hook(target, "FunctionRecorder")

    assert f"pre {target.__name__}" not in everywhere.events
    assert f"backward pre {target.__name__}" not in everywhere.events
    assert local.events[1:3] == forward(target.__name__)


def test_a_hook_of_another_name_on_a_target_is_called_as_well() -> None:
    local = FunctionRecorder()
    add_hook(F.relu, local, name="another")

    with FunctionRecorder() as everywhere:
        F.relu(x())
    delete_hook(F.relu, "another")

    assert everywhere.events[1:-1] == local.events[1:-1] == forward("relu")


def test_deleted_hooks_are_not_called() -> None:
    hooks = [FunctionRecorder() for _ in range(4)]
    loss = F.relu(Cube.apply(x())).sum()
    node = loss.grad_fn
    for target, local in zip((F.relu, Cube, node), hooks, strict=False):
        add_hook(target, local, "local")
        delete_hook(target, "local")
    with hooks[3]:
        pass
    for hook in hooks:
        hook.taken()

    loss.backward()
    F.relu(Cube.apply(x())).sum().backward()

    assert [hook.events for hook in hooks] == [[]] * 4


def test_hooks_of_one_thread_are_not_called_in_another() -> None:
    on_function = FunctionRecorder("on function")
    add_hook(F.relu, on_function)
    with FunctionRecorder() as hook:
        in_thread(lambda: F.relu(Cube.apply(x())).sum().backward())
        in_thread(lambda: FunctionRecorder().__enter__().__exit__(None, None, None))
    delete_hook(F.relu, "on function")

    assert hook.events == ["added NoneType", "deleted NoneType"]
    assert on_function.events == ["added relu", "deleted relu"]


def test_a_hook_on_a_torch_function_is_known_in_its_own_thread_only() -> None:
    add_hook(F.relu, FunctionRecorder())

    with pytest.raises(KeyError, match="no hook 'FunctionRecorder' here"):
        in_thread(lambda: delete_hook(F.relu, "FunctionRecorder"))
    delete_hook(F.relu, "FunctionRecorder")


def test_a_hook_on_a_class_is_called_in_every_thread() -> None:
    hook = FunctionRecorder()
    add_hook(Cube, hook)
    hook.taken()

    in_thread(lambda: Cube.apply(x()).sum().backward())
    Cube.apply(x()).sum().backward()
    delete_hook(Cube, "FunctionRecorder")

    once = [*forward("Cube"), *backward("Cube")]
    assert hook.events == [*once, *once, "deleted Cube"]


def test_the_public_names() -> None:
    assert torchprof_hooks.FunctionHook is FunctionHook
    assert FunctionHook.name == FunctionHook().name == "FunctionHook"


def test_callbacks_that_are_not_overridden_do_nothing() -> None:
    with FunctionHook() as hook:
        Cube.apply(x()).sum().backward()
    assert hook.name == "FunctionHook"


def test_one_callback_may_be_overridden_alone() -> None:
    class Posts(FunctionHook):
        def backward_postprocess(self, *arguments: Any) -> None:
            seen.append(arguments[0].name)

    seen: list[str] = []
    with Posts():
        x().exp().sum().backward()

    assert seen == ["sum", "exp"]


# What is refused


WRONG_TARGETS = [
    None,
    "linear",
    print,
    len,
    int,
    torch.Tensor,
    torch.Tensor.shape,
    torch.Tensor.size,
    nn.Linear,
    Cube.apply,
]
MESSAGE = (
    ": a LinkHook goes on a torch.nn.Module; a FunctionHook on a class derived from "
    "torch.autograd.Function, on a torch function such as torch.nn.functional.linear, "
    "or on an autograd node such as loss.grad_fn"
)


def _without_address(wrong: object) -> str:
    """What it is called, in each process alike."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(wrong))


@pytest.mark.parametrize("wrong", WRONG_TARGETS, ids=_without_address)
def test_only_functions_can_be_hooked(wrong: Any) -> None:
    hook = FunctionRecorder()
    what = f"the class {wrong.__name__}" if isinstance(wrong, type) else repr(wrong)
    message = (
        "^" + re.escape(f"target must be something to hook, not {what}{MESSAGE}") + "$"
    )

    with pytest.raises(TypeError, match=message):
        add_hook(wrong, hook)
    with pytest.raises(TypeError, match=message):
        delete_hook(wrong, "FunctionRecorder")
    assert hook.events == []


def test_the_class_that_all_functions_derive_from_cannot_be_hooked() -> None:
    hook = FunctionRecorder()
    try:
        with pytest.raises(
            TypeError, match=r"target must be .* not the class Function"
        ):
            add_hook(torch.autograd.Function, hook)
    finally:
        if hook.events:
            delete_hook(torch.autograd.Function, hook.name)


@pytest.mark.parametrize(
    "wrong",
    [None, "hook", LinkHook(), FunctionHook],
    ids=["None", "a name", "a LinkHook", "the class"],
)
@pytest.mark.parametrize("target", [F.relu, Cube])
def test_only_hooks_on_functions_go_on_functions(target: Any, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"must be a FunctionHook \(that is what goes"):
        add_hook(target, wrong)


def test_hooks_on_functions_do_not_go_on_modules() -> None:
    with pytest.raises(TypeError, match=r"must be a LinkHook \(that is what goes on m"):
        add_hook(nn.ReLU(), FunctionRecorder())
