"""What Chainer's hooks promise, on modules and on functions alike, wherever they are:
names, the order of callbacks, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.functions import Cube, FunctionRecorder, backward, forward, x
from tests.helpers import FORWARD, MyModel, Recorder, in_thread, inputs
from tests.seeds.hook_places import PLACES, TARGETS, Place
from torchprof_hooks import (
    FunctionHook,
    LinkHook,
    add_hook,
    delete_hook,
    function_hooks,
    link_hooks,
)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    return PLACES[request.param]()


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Place:
    return TARGETS[request.param]()


def test_order_of_callbacks(place: Place) -> None:
    hook = place.kind()
    for _ in range(2):
        assert place.add(hook) is (place.target or hook)
        place.step()
        place.delete(hook)
        place.step()  # not seen

    assert hook.events == [place.added, *place.events, place.deleted] * 2


def test_order_of_callbacks_of_calls_inside_of_each_other() -> None:
    model = MyModel()
    with Recorder() as links, FunctionRecorder() as functions:
        model(inputs())
        links_seen = links.taken()
        functions.taken()
        Cube.apply(x()).exp().sum().backward()

    assert links_seen == ["added NoneType", *FORWARD]
    inside = ["pre Cube", *forward("mul", "mul"), "post Cube"]
    assert functions.events == [
        *[*inside, *forward("exp", "sum")],
        *[*backward("sum", "exp", "Cube"), "deleted NoneType"],
    ]


def test_a_name_is_taken_once(place: Place) -> None:
    first, second, renamed = place.kind(), place.kind(), place.kind("another name")
    place.add(first)

    with pytest.raises(KeyError, match=f"'{first.name}' already exists"):
        place.add(second)
    assert second.events == []

    place.add(renamed)
    if place.target is None:
        in_thread(lambda: second.__enter__().__exit__(None, None, None))  # free there
    else:
        with pytest.raises(KeyError, match="'another name' already exists"):
            add_hook(place.target, second, name="another name")
        delete_hook(add_hook(place.other, second), second.name)  # free there
    place.delete(renamed)
    place.delete(first)


def test_names_on_modules_and_on_functions_are_not_the_same() -> None:
    with FunctionRecorder("same"), Recorder("same") as links:
        nn.Identity()(x())

    assert links.events[1:-1] == forward("Identity")


def test_deleting_an_unknown_name_tells_the_known_ones(target: Place) -> None:
    hook = target.kind()
    target.add(hook)

    with pytest.raises(KeyError, match=rf"no hook 'T' here; .*: '{hook.name}'"):
        delete_hook(target.target, "T")
    with pytest.raises(KeyError, match=rf"no hook '{hook.name}' here; .*: none"):
        delete_hook(target.other, hook.name)
    target.delete(hook)
    with pytest.raises(KeyError, match=rf"no hook '{hook.name}' here; .*: none"):
        target.delete(hook)


def test_a_hook_under_two_names_is_called_twice(target: Place) -> None:
    hook = target.kind()
    for name in ("first", "second"):
        add_hook(target.target, hook, name=name)
    target.step()
    delete_hook(target.target, "first")
    target.step()
    delete_hook(target.target, "second")

    twice = [event for event in target.events for _ in range(2)]
    assert hook.events == [
        *[target.added] * 2,
        *[*twice, target.deleted],
        *[*target.events, target.deleted],
    ]


def test_two_hooks_at_once_are_both_called(place: Place) -> None:
    first, second = place.kind("first"), place.kind("second")
    place.add(first), place.add(second)
    place.step()
    place.delete(first)
    place.step()
    place.delete(second)

    assert first.events == [place.added, *place.events, place.deleted]
    assert second.events == [place.added, *place.events * 2, place.deleted]


@pytest.mark.parametrize("name", ["the same", "another"])
@pytest.mark.parametrize("where", ["module", "function", "class"])
def test_a_hook_on_a_target_replaces_the_thread_wide_one_of_its_name_there_only(
    where: str, name: str
) -> None:
    target = TARGETS[where]()
    local = target.kind(name)

    def step() -> list[str]:
        """What the thread-wide hook is told of it."""
        target.other(x())
        target.step()
        return everywhere.taken()

    with target.kind("the same") as everywhere:
        everywhere.taken()
        seen = step()
        target.add(local)
        beside = step()
        target.delete(local)
        seen_again = step()

    assert set(target.events) < set(seen)
    replaced = target.events if name == "the same" else []
    assert beside == [event for event in seen if event not in replaced]
    assert seen_again == seen
    assert local.events == [target.added, *target.events, target.deleted]


def test_in_which_threads_a_hook_is_called(place: Place) -> None:
    in_all = place.target is not None and place.target is not F.relu
    hook = place.kind()
    place.add(hook)
    in_thread(place.step)
    place.delete(hook)

    assert hook.events[1:-1] == (place.events if in_all else [])


@pytest.mark.parametrize("where", ["module", "function"])
def test_one_callback_may_be_overridden_alone(where: str) -> None:
    class Links(LinkHook):
        def backward_postprocess(self, args: Any) -> None:
            seen.append(args.path)

    class Functions(FunctionHook):
        def backward_postprocess(self, *args: Any) -> None:
            seen.append(args[0].name)

    seen: list[str] = []
    with Links() if where == "module" else Functions():
        TARGETS[where]().step()

    assert seen == ["Linear" if where == "module" else "relu"]


@pytest.mark.parametrize("folder", [link_hooks, function_hooks])
def test_hooks_are_called_as_their_classes(folder: Any) -> None:
    base = LinkHook if folder is link_hooks else FunctionHook
    hooks = [getattr(folder, name) for name in folder.__all__ if name.endswith("Hook")]
    for hook in (base, *hooks):
        assert issubclass(hook, base)
        assert hook.name == hook.__name__


# What is refused


WRONG_TARGETS = [
    *[None, "linear", print, len, int, nn.Linear, Cube.apply],
    *[torch.Tensor, torch.Tensor.shape, torch.Tensor.size, torch.autograd.Function],
]
MESSAGE = (
    ": a LinkHook goes on a torch.nn.Module; a FunctionHook on a class derived from "
    "torch.autograd.Function, on a torch function such as torch.nn.functional.linear, "
    "or on an autograd node such as loss.grad_fn"
)


def without_address(wrong: object) -> str:
    """What it is called, in each process alike."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(wrong))


@pytest.mark.parametrize("kind", [Recorder, FunctionRecorder])
@pytest.mark.parametrize("wrong", WRONG_TARGETS, ids=without_address)
def test_what_takes_no_hook(wrong: Any, kind: type[Recorder]) -> None:
    hook = kind()
    what = f"the class {wrong.__name__}" if isinstance(wrong, type) else repr(wrong)
    text = re.escape(f"target must be something to hook, not {what}{MESSAGE}")

    with pytest.raises(TypeError, match=f"^{text}$"):
        add_hook(wrong, hook)
    with pytest.raises(TypeError, match=f"^{text}$"):
        delete_hook(wrong, hook.name)
    assert hook.events == []


WRONG_HOOKS = {
    "None": None,
    "a name": "hook",
    "a function": print,
    "a module": nn.ReLU(),
    "the class FunctionHook": FunctionHook,
    "the class LinkHook": LinkHook,
}


@pytest.mark.parametrize("wrong", [*WRONG_HOOKS, "a hook of the other kind"])
def test_what_is_no_hook_for_a_target(target: Place, wrong: str) -> None:
    wanted, other = "LinkHook", FunctionRecorder()
    if target.kind is FunctionRecorder:
        wanted, other = "FunctionHook", LinkHook()  # type: ignore[assignment]
    hook: Any = WRONG_HOOKS.get(wrong, other)
    shown = wrong if isinstance(hook, type) else repr(hook)
    text = rf"must be a {wanted} \(that is what goes on .*\), not "
    with pytest.raises(TypeError, match=text + re.escape(shown)):
        add_hook(target.target, hook)
