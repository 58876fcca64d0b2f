"""What is known of an optimizer."""

from __future__ import annotations

import inspect
from typing import Any

from torchprof_hooks.capture.torch_names.inputs import device_type_of
from torchprof_hooks.profiles.program.program_facts import OptimizerFacts


def read_optimizer(optimizer: Any) -> OptimizerFacts:
    """Its facts. Reads what optimizers of torch have; others may lack it."""
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
