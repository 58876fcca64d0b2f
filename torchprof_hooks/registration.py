"""Puts hooks on one module, one function or one autograd node."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from torchprof_hooks.function_hook import FunctionHook
from torchprof_hooks.hooks.hook import check_free, check_known
from torchprof_hooks.hooks.trackers import ask_again
from torchprof_hooks.instruments.functions.names import (
    is_function_class,
    is_of_torch,
    notifies_modes,
)
from torchprof_hooks.instruments.functions.targets import (
    FunctionSubscription,
    NodeSubscription,
    forget_node,
    subscriptions_of_function,
    subscriptions_of_node,
)
from torchprof_hooks.kernel.subscriptions import (
    ModuleSubscription,
    module_subscriptions,
)
from torchprof_hooks.link_hook import LinkHook
from torchprof_hooks.measure.uninterrupted import uninterrupted
from torchprof_hooks.profiles.options import check_text

Target = TypeVar("Target")


def add_hook(
    target: Target, hook: LinkHook | FunctionHook, name: str | None = None
) -> Target:
    """Activate `hook` for `target`, and for nothing else.

    Args:
        target: for a `LinkHook`, a module (its calls in all threads). For a
            `FunctionHook`, a class derived from ``torch.autograd.Function`` (its calls
            in all threads), a torch function such as ``torch.nn.functional.linear`` or
            ``torch.Tensor.add`` (its calls in this thread), or an autograd node such as
            ``loss.grad_fn`` (its backward). Functions and methods of one name are
            different targets: ``x + y`` calls ``torch.Tensor.add``, not ``torch.add``,
            and a method like ``torch.Tensor.__add__`` is no target.
        hook: the hook whose callbacks are called.
        name: the name to register the hook under; by default ``hook.name``.

    Returns:
        `target`.

    Raises:
        KeyError: `target` has a hook of that name already.
        TypeError: `target` cannot be hooked, or `hook` is of the wrong kind for it.
            Torch does not report calls of some functions, such as
            ``torch.nn.functional.sigmoid``; then hook the function that they call, here
            ``torch.Tensor.sigmoid``.
        ValueError: `name` is empty.
    """
    if name is not None:
        check_text("name", name)
    _check_target(target)
    subscriptions = _subscriptions_of(target)
    is_module = isinstance(target, torch.nn.Module)
    _check_hook(hook, LinkHook if is_module else FunctionHook)
    name = hook.name if name is None else name
    check_free(name, subscriptions.get(name))
    hook.added(target)
    with uninterrupted():
        _connect(target, name, hook)
    return target


def delete_hook(target: object, name: str) -> None:
    """Deactivate the hook that was put on `target` under `name`.

    Raises:
        KeyError: `target` has no hook of that name.
        TypeError: `target` cannot be hooked.
    """
    _check_target(target)
    subscriptions = _subscriptions_of(target)
    check_known(name, subscriptions)
    subscription = subscriptions[name]
    try:
        subscription.hook.deleted(target)
    finally:
        with uninterrupted():
            subscriptions.pop(name, None)
            subscription.close()
            if isinstance(target, torch.nn.Module):
                ask_again(target)
            elif isinstance(target, torch.autograd.graph.Node):
                forget_node(target)


def _connect(target: Any, name: str, hook: Any) -> None:
    if isinstance(target, torch.nn.Module):
        threads = hook._target_threads
        others = module_subscriptions(target).values()
        if any(subscription.hook is hook for subscription in others):
            threads = hook._new_target_threads()  # each registration gets each call
        ModuleSubscription(target, name, hook, threads)
        ask_again(target)
    elif isinstance(target, torch.autograd.graph.Node):
        NodeSubscription(target, name, hook)
    else:
        FunctionSubscription(target, name, hook)


def _check_target(target: Any) -> None:
    """TypeError if it cannot be hooked."""
    kinds = torch.nn.Module, torch.autograd.graph.Node
    if isinstance(target, kinds) or is_function_class(target) or notifies_modes(target):
        return
    if is_of_torch(target):
        raise TypeError(
            "target must be a function whose calls torch makes known, not "
            f"{_describe(target)}: hook the functions that it calls"
        )
    raise TypeError(
        f"target must be something to hook, not {_describe(target)}: a LinkHook "
        "goes on a torch.nn.Module; a FunctionHook on a class derived from "
        "torch.autograd.Function, on a torch function such as "
        "torch.nn.functional.linear, or on an autograd node such as loss.grad_fn"
    )


def _subscriptions_of(target: Any) -> dict[str, Any]:
    """The hooks on the target, by name."""
    if isinstance(target, torch.nn.Module):
        return module_subscriptions(target)
    if isinstance(target, torch.autograd.graph.Node):
        return subscriptions_of_node(target)
    return subscriptions_of_function(target)


def _check_hook(hook: object, kind: type) -> None:
    if not isinstance(hook, kind):
        what = "modules" if kind is LinkHook else "functions"
        raise TypeError(
            f"hook must be a {kind.__name__} (that is what goes on {what}), not "
            f"{_describe(hook)}"
        )


def _describe(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)
