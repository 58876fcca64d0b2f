"""Two ranks of Lightning, which starts the second one by itself."""

from __future__ import annotations

import sys
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def training_step(self, batch: Any, number: int) -> Any:
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    trainer = Trainer(
        max_steps=4,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        default_root_dir=sys.argv[1],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), DataLoader(torch.ones(32, 8), 2))  # type: ignore[arg-type]
