"""Three equal layers share an input. Which one takes how long in backward?

PyTorch's own ``ModuleTracker``, on which ``FlopCounterMode`` stands, lets a module's
backward last until the gradient of its input is complete. That of a shared input is
complete only when all modules that use it have run, so they bleed into each other.
"""

from __future__ import annotations

from typing import cast

import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import torchprof_hooks

WIDTH, BATCH, STEPS = 512, 512, 50


class Attention(nn.Module):
    """Only what matters here: q, k and v read the same tensor, o reads their sum."""

    def __init__(self) -> None:
        super().__init__()
        for name in "qkvo":
            self.add_module(name, nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        parts = dict(self.named_children())
        return cast("Tensor", parts["o"](sum(parts[name](x) for name in "qkv")))


def main() -> None:
    model = Attention()
    x = torch.randn(BATCH, WIDTH, requires_grad=True)

    def step() -> None:
        model(x).sum().backward()

    with FlopCounterMode(display=False) as counter:
        step()
    with torchprof_hooks.profile() as prof:
        for _ in range(STEPS):
            step()

    rows = {row.name: row for row in prof.profile.rows()}
    table = []
    for name in ("q", "k", "v", "o"):
        counted = sum(counter.get_flop_counts()[f"Attention.{name}"].values())
        phases = rows[f"Attention.{name}"].phases
        table.append(
            [
                name,
                6 * BATCH * WIDTH**2 / 1e6,  # forward and two products in backward
                counted / 1e6,
                phases["forward"].mean_ns / 1e6,
                phases["backward"].mean_ns / 1e6,
            ]
        )
    print(
        tabulate(
            table,
            headers=[
                "layer",
                "MFLOP, true",
                "MFLOP, FlopCounterMode",
                "forward, ms (ours)",
                "backward, ms (ours)",
            ],
            floatfmt=("", ".0f", ".0f", ".2f", ".2f"),
            tablefmt="github",
        )
    )


if __name__ == "__main__":
    main()
