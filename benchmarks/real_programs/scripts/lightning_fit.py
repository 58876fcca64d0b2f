"""Lightning's Trainer, with validation."""

from __future__ import annotations

import gc
import logging
import warnings

import torch
from pytorch_lightning import LightningModule, Trainer, seed_everything
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 26 * 26, 10)
        )

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        if index % 20 == 0:
            print(repr(loss.item()))
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        print(repr(F.cross_entropy(self.layers(batch[0]), batch[1]).item()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


# A full collection takes 0.2 s with all these imports, wherever it falls.
gc.freeze()
seed_everything(0)
pictures, labels = torch.randn(2000, 1, 28, 28), torch.randint(0, 10, (2000,))
data = TensorDataset(pictures, labels)
trainer = Trainer(
    max_epochs=20,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Net(), DataLoader(data, 32), DataLoader(data, 500))
