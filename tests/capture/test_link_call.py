from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.helpers import Keeper, MyModel, inputs
from torchprof_hooks import LinkCall, LinkHook, add_hook, delete_hook


def call_with(model: MyModel, hook: LinkHook, everywhere: bool) -> Callable[..., Any]:
    """Calls the model, with the hook on all modules, or on it alone."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if everywhere:
            with hook:
                return model(*args, **kwargs)
        add_hook(model, hook)
        try:
            return model(*args, **kwargs)
        finally:
            delete_hook(model, hook.name)

    return call


class Seen(LinkHook):
    """Keeps what the callbacks of the outermost module were told, when told."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def _keep(self, args: LinkCall) -> None:
        if isinstance(args.link, MyModel):
            self.parts.append((args.args, dict(args.kwargs), args.out, args))

    def forward_preprocess(self, args: LinkCall) -> None:
        self._keep(args)

    def forward_postprocess(self, args: LinkCall) -> None:
        self._keep(args)


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize(
    ("positional", "keywords"),
    [(("x",), ()), (("x", "scale"), ()), (("x",), ("scale",)), ((), ("x", "scale"))],
)
def test_what_the_callbacks_are_told(
    positional: tuple[str, ...], keywords: tuple[str, ...], everywhere: bool
) -> None:
    values: dict[str, Any] = {"x": inputs(), "scale": 2.0}
    args = tuple(values[name] for name in positional)
    kwargs = {name: values[name] for name in keywords}
    model, hook = MyModel(), Seen()

    out = call_with(model, hook, everywhere)(*args, **kwargs)

    pre, post = hook.parts
    assert pre[:3] == (args, kwargs, None)
    assert post[:2] == (args, kwargs)
    assert post[2] is out
    call = post[3]
    assert call.link is call.module is model
    assert (call.path, call.forward_name) == ("MyModel", "forward")


def test_inner_modules_are_told_of_with_their_own_arguments() -> None:
    model, x = MyModel(), inputs()

    with Keeper() as hook:
        model(scale=2.0, x=x)

    calls = hook.calls[1]  # pre of l1
    assert calls.link is model.l1
    assert calls.args == (x,)
    assert calls.kwargs == {}
    assert torch.equal(calls.out, model.l1(x))


def test_calls_can_be_printed() -> None:
    with Keeper() as hook:
        MyModel()(inputs(), scale=2.0)

    text = "LinkCall(path='MyModel', link=MyModel, forward_name='forward', 1 args, "
    assert str(hook.calls[0]) == repr(hook.calls[0]) == text + "kwargs=['scale'])"


def test_two_calls_have_two_arguments_objects() -> None:
    model = MyModel()
    with Keeper() as hook:
        model(inputs())
        model(inputs())

    pre, post = hook.calls[0], hook.calls[5]
    assert pre is post  # of one call
    assert len({id(call) for call in hook.calls}) == 6
