"""Fits a LightningModule for a few steps, on the CPU, and prints its losses.

Arguments: the folder that Lightning may write to; "--sigterm" for a SIGTERM from inside
of step 5, which Lightning takes as a wish to end well.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from owned_clock import busy  # type: ignore[import-not-found]  # isort: skip

import torch
from pytorch_lightning import LightningModule, Trainer, seed_everything
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

STEPS = 12
BATCH = 4
FORWARD_MS, BACKWARD_MS = 10, 15
LOADING_MS = 8  # of a batch


class Burning(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        busy(FORWARD_MS)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        busy(BACKWARD_MS)
        return grad.clone()


class Slow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Burning.apply(x)
        return result


class Points(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        busy(LOADING_MS / BATCH)
        return torch.randn(8), torch.randn(1)


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), Slow(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x)
        return result

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        loss = F.mse_loss(self(x), y)
        print(repr(loss.item()))
        if index == 5 and "--sigterm" in sys.argv:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 0.01)


seed_everything(0)
trainer = Trainer(
    default_root_dir=sys.argv[1],
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Net(), DataLoader(Points(), batch_size=BATCH))
