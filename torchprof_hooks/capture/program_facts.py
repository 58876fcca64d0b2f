"""Facts about a program's optimizers, which tips need besides times."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from torchprof_hooks.capture.torch_names.inputs import device_type_of
from torchprof_hooks.profiles.optimizers import OptimizerFacts


def read_optimizer(optimizer: Any) -> OptimizerFacts:
    """Facts about `optimizer`, which may lack the attributes that torch's own have."""
    groups = getattr(optimizer, "param_groups", [])
    parameters = [each for group in groups for each in group.get("params", ())]
    devices = {device_type_of(each) for each in parameters}
    options = inspect.signature(type(optimizer).__init__).parameters
    is_differentiable = any(group.get("differentiable") for group in groups)
    return OptimizerFacts(
        type(optimizer).__name__,
        len(parameters),
        "fused" in options and not is_differentiable,
        any(group.get("fused") for group in groups),
        devices.pop() if len(devices) == 1 else "",
    )


def together(every: Iterable[OptimizerFacts]) -> tuple[OptimizerFacts, ...]:
    """The facts, merged for optimizers that differ only in the number of tensors."""
    found: dict[OptimizerFacts, OptimizerFacts] = {}
    for each in every:
        kind = each._replace(parameters=0, optimizers=0)
        known = found.get(kind, kind)
        found[kind] = kind._replace(
            parameters=known.parameters + each.parameters,
            optimizers=known.optimizers + each.optimizers,
        )
    return tuple(found.values())
