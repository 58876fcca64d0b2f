"""What the callbacks of a hook on modules are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.helpers import Keeper, MyModel, inputs
from torchprof_hooks import LinkCall, LinkHook, add_hook, delete_hook


class Told(LinkHook):
    """Keeps what callbacks of the outermost module were told, when they were told."""

    def __init__(self) -> None:
        self.told: list[tuple[LinkCall, Any, dict[str, Any], Any]] = []

    def forward_preprocess(self, args: LinkCall) -> None:
        if isinstance(args.link, MyModel):
            self.told.append((args, args.args, dict(args.kwargs), args.out))

    forward_postprocess = forward_preprocess


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
    model, hook = MyModel(), Told()
    if everywhere:
        with hook:
            out = model(*args, **kwargs)
    else:
        add_hook(model, hook)
        out = model(*args, **kwargs)
        delete_hook(model, hook.name)
    (_, *before), (call, *after) = hook.told
    assert before == [args, kwargs, None]
    assert after[:2] == [args, kwargs]
    assert after[2] is out
    assert call.link is call.module is model
    assert (call.path, call.forward_name) == ("MyModel", "forward")


def test_each_call_has_one_object_with_its_own_arguments() -> None:
    model, x = MyModel(), inputs()
    with Keeper() as hook:
        model(scale=2.0, x=x)
        model(x)
    outermost, inner = hook.calls[:2]
    assert outermost is hook.calls[5]  # of one call
    assert len({id(call) for call in hook.calls}) == 6
    assert inner.link is model.l1
    assert (inner.args, inner.kwargs) == ((x,), {})
    assert torch.equal(inner.out, model.l1(x))
    text = "LinkCall(path='MyModel', link=MyModel, forward_name='forward', 0 args, "
    assert str(outermost) == repr(outermost) == text + "kwargs=['scale', 'x'])"
