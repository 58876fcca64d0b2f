"""Private names of ``torch.optim``."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def any_optimizer_made() -> bool:
    """Whether an optimizer of torch's was ever made in this process: the first of each
    class has its ``step`` replaced by one that calls hooks, which has this mark. Where
    torch marks them differently: False, and gradients that are accumulated before the
    first step of an optimizer count as a step each."""
    return any(getattr(kind.__dict__.get("step"), "hooked", False) for kind in _kinds())


def _kinds() -> Iterator[type]:
    to_visit: list[type] = [torch.optim.Optimizer]
    for kind in to_visit:
        yield kind
        to_visit.extend(kind.__subclasses__())
