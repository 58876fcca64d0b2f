"""Work that is the same in all programs, and shows how fast the machine is just now."""

from __future__ import annotations

import torch
from torch import nn

#: Rows of the matrices, numbers of the vectors. A piece takes some tenths of a
#: millisecond: long enough to be measured, short enough to run undisturbed now and then
#: on a machine that does other things, too.
_ROWS, _NUMBERS = 192, 200_000


class Matrices(nn.Module):
    """Work for the arithmetic units."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.factor = torch.full((_ROWS, _ROWS), 1 / _ROWS, device=device)
        self.product = torch.empty_like(self.factor)

    def forward(self) -> None:
        for _ in range(2):
            torch.mm(self.factor, self.factor, out=self.product)


class Vectors(nn.Module):
    """Work for the memory."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.numbers = torch.ones(_NUMBERS, device=device)
        self.sums = torch.empty_like(self.numbers)

    def forward(self) -> None:
        for _ in range(2):
            torch.add(self.numbers, 1.0, out=self.sums)


class Reference(nn.Sequential):
    """Both kinds of work, each measured by itself: they are modules, so a profiler
    measures them like the modules of the step, on a device with its clock.

    device: where the work is done.
    """

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(Matrices(device), Vectors(device))

    def forward(self) -> None:  # type: ignore[override]
        with torch.no_grad():
            for piece in self:
                piece()
