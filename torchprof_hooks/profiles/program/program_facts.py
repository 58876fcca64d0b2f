"""Facts about a program besides its times. The module is small: programs import it
while they run, and the rest of a `ProgramProfile` when they end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torchprof_hooks.profiles.files.fields import Count


class OptimizerFacts(NamedTuple):
    """An optimizer that has stepped.

    name: its class.
    parameters: how many tensors it steps.
    can_fuse, is_fused: whether there is a fused form of it, and it is used.
    device: kind of the device that all parameters are on ("cpu", "cuda"), else "".
    """

    name: str
    parameters: Count
    can_fuse: bool
    is_fused: bool
    device: str = ""


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """Facts that tips need.

    optimizers: those that have stepped.
    detects_anomalies: whether autograd's anomaly mode was on in a step, or is now.
    leaves_tf32_unused: whether a CUDA device has tensor cores for float32 products, and
        torch has not been allowed to use them.
    """

    optimizers: tuple[OptimizerFacts, ...] = ()
    detects_anomalies: bool = False
    leaves_tf32_unused: bool = False
