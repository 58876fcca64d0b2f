"""What loops of libraries are made of here: work that takes time by the fake clock."""

from __future__ import annotations

from typing import Any

import torch

from tests.fake_clock import MS, burn
from tests.planted import Work
from torchprof_hooks import Profile

FORWARD_MS, BACKWARD_MS, LOADING_MS = 10, 15, 4
BATCH = 2


class Layer(Work):
    """One that takes this time in the models of trainers."""

    def __init__(self) -> None:
        super().__init__(FORWARD_MS, BACKWARD_MS)


class Points(torch.utils.data.Dataset[Any]):
    """The one at `bad` cannot be read."""

    def __init__(self, count: int, bad: int | None = None) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 3, generator=generator)
        self.bad = bad

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        burn(LOADING_MS / BATCH)
        if index == self.bad:
            raise OSError("a broken disk")
        return self.x[index]


def totals(found: Profile, name: str, phase: str) -> tuple[int, float]:
    """Calls of a module, and milliseconds in it."""
    [row] = [row for row in found.rows() if row.name == name]
    found_totals = row.phases[phase]  # type: ignore[index]
    return found_totals.calls, found_totals.cumulative_ns / MS
