"""Lightning's Trainer, with validation: on small pictures, or with `tiny` on points,
where modules take less than a tenth of a millisecond:
``lightning_fit.py [tiny] [EPOCHS]``."""

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
if "tiny" in sys.argv:
    sizes = (32,)
    net = Net(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))
else:
    sizes = (1, 28, 28)
    net = Net(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 26 * 26, 10))
epochs = int(sys.argv[-1]) if sys.argv[-1].isdigit() else 20
data = TensorDataset(torch.randn(2000, *sizes), torch.randint(0, 10, (2000,)))
trainer = Trainer(
    max_epochs=epochs,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(net, DataLoader(data, 32), DataLoader(data, 500))
