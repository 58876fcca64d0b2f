"""What is known of a program's optimizers. Imported while it runs, so small."""

from __future__ import annotations

from typing import NamedTuple


class OptimizerFacts(NamedTuple):
    """A group of optimizers that have stepped, and differ in their tensors only.

    name: their class.
    parameters: how many tensors they update, together.
    can_fuse, is_fused: whether they have a fused form, and whether they use it.
    device: kind of the device that all parameters are on ("cpu", "cuda"); "" if they
        are on several.
    optimizers: how many there are.
    can_foreach, is_foreach: whether they have a form that updates all tensors together
        and is not fused, and whether they use it, as is the default but on CPUs.
    """

    name: str
    parameters: int
    can_fuse: bool
    is_fused: bool
    device: str = ""
    optimizers: int = 1
    can_foreach: bool = False
    is_foreach: bool = False
