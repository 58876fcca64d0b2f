"""Optimizers: their steps are rows of their own, and what is known of them leads to
advice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.torch_names.tensors import device_type_of
from torchprof_hooks.profiles.names import OUTSIDE_NAME
from torchprof_hooks.profiles.optimizers import OptimizerFacts

if TYPE_CHECKING:
    from torchprof_hooks.profiles.program import ProgramFacts


class Optimizers(Observer):
    """Has steps of optimizers interrupt calls.

    reads_facts: whether it also looks at each optimizer, once.
    """

    def __init__(self, reads_facts: bool = False) -> None:
        self._reads_facts = reads_facts
        self._read: dict[int, OptimizerFacts] = {}  # by their ids
        self._detects_anomalies = False

    def optimizer_begins(self, optimizer: Any) -> None:
        name = type(optimizer).__name__
        self.reading.interrupt(name, "optimizer", of=optimizer)

    def optimizer_ended(self, optimizer: Any, ended_ns: int) -> None:
        self.reading.end_interruption(optimizer, ended_ns)
        if self._reads_facts and id(optimizer) not in self._read:
            with self.reading.our_work():
                self._read[id(optimizer)] = read_optimizer(optimizer)
        self._detects_anomalies |= torch.is_anomaly_enabled()

    def closure_begins(self) -> Callable[[], object] | None:
        """A closure is not the optimizer's time."""
        if self.reading.site.phase != "optimizer":
            return None
        return self.reading.interrupt(OUTSIDE_NAME, "outside").end

    def facts(self) -> ProgramFacts:
        """What is known of the program besides its times."""
        from torchprof_hooks.profiles.program import ProgramFacts

        return ProgramFacts(
            together(self._read.values()),
            self._detects_anomalies or torch.is_anomaly_enabled(),
        )


def facts_of(observers: Iterable[Observer]) -> ProgramFacts:
    """What the one of these that observes optimizers knows."""
    from torchprof_hooks.profiles.program import ProgramFacts

    found = (each.facts() for each in observers if isinstance(each, Optimizers))
    return next(found, ProgramFacts())


def read_optimizer(optimizer: Any) -> OptimizerFacts:
    """Facts about `optimizer`, which may lack the attributes that torch's own have."""
    groups = getattr(optimizer, "param_groups", [])
    parameters = [each for group in groups for each in group.get("params", ())]
    devices = {device_type_of(each) for each in parameters}
    device = devices.pop() if len(devices) == 1 else ""
    options = inspect.signature(type(optimizer).__init__).parameters
    is_differentiable = any(group.get("differentiable") for group in groups)
    can_foreach = "foreach" in options and not is_differentiable
    by_default = can_foreach and device not in ("", "cpu")
    asked = [group.get("foreach") for group in groups]
    return OptimizerFacts(
        type(optimizer).__name__,
        len(parameters),
        "fused" in options and not is_differentiable,
        any(group.get("fused") for group in groups),
        device,
        can_foreach=can_foreach,
        is_foreach=any(by_default if each is None else each for each in asked),
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
