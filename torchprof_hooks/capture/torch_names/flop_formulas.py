"""Torch's formulas for floating-point operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch


@cache
def _formulas() -> Mapping[Any, Callable[..., int]]:
    """Torch's formulas for floating-point operations, by operator, with what programs
    register later; empty where torch has none."""
    try:
        from torch.utils import flop_counter
    except ImportError:
        return {}
    found: dict[Any, Callable[..., int]] = getattr(flop_counter, "flop_registry", {})
    return found


def operator_formula(name: str) -> Callable[..., int] | None:
    """Torch's, or the program's, formula for an operator, "aten::mm"; None if there is
    none."""
    namespace, _, operator = name.partition("::")
    if not operator.isidentifier():
        return None
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    return None if packet is None else _formulas().get(packet)
