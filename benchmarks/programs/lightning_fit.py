"""Lightning's Trainer, with validation, and modules that take less than a tenth of a
millisecond: ``lightning_fit.py EPOCHS``."""

from __future__ import annotations

import gc
import logging
import sys
import warnings

import torch
from pytorch_lightning import LightningModule, Trainer, seed_everything
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Net(LightningModule):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

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
torch.set_num_threads(1)
seed_everything(0)
net = Net(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))
data = TensorDataset(torch.randn(2000, 32), torch.randint(0, 10, (2000,)))
trainer = Trainer(
    max_epochs=int(sys.argv[1]),
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(net, DataLoader(data, 32), DataLoader(data, 500))
