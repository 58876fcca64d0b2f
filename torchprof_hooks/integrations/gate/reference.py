"""Work that is the same in all programs: how fast is the machine just now?"""

from __future__ import annotations

import torch
from torch import nn

#: Rows of the matrices, numbers of the vectors. A piece takes some tenths of a
#: millisecond: long enough to be measured, short enough to be left alone now and then
#: on a machine that does other things, too.
_ROWS, _NUMBERS = 192, 200_000


class Matrices(nn.Module):
    """Arithmetic."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.factor = torch.full((_ROWS, _ROWS), 1 / _ROWS, device=device)
        self.product = torch.empty_like(self.factor)

    def forward(self) -> None:
        for _ in range(2):
            torch.mm(self.factor, self.factor, out=self.product)


class Vectors(nn.Module):
    """Memory."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.numbers = torch.ones(_NUMBERS, device=device)
        self.sums = torch.empty_like(self.numbers)

    def forward(self) -> None:
        for _ in range(2):
            torch.add(self.numbers, 1.0, out=self.sums)


class Reference(nn.Sequential):
    """Both, each measured by itself: the pieces are modules, so that a profiler
    measures them as it does the modules of the step, on a device with its clock.

    device: where they work.
    """

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(Matrices(device), Vectors(device))

    def forward(self) -> None:  # type: ignore[override]
        with torch.no_grad():
            for piece in self:
                piece()
