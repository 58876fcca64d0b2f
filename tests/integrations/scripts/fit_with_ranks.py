"""Fits a model with Lightning's `ddp` in each process of torchrun, on the CPU, and has
the first print its parameters.

Arguments: the folder for files; "measured" for our callback, or "bare".
"""

from __future__ import annotations

import sys

import torch
from pytorch_lightning import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from torchprof_hooks import profile
from torchprof_hooks.integrations.lightning import TorchprofCallback


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 1)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss: torch.Tensor = self.fc(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


folder, kind = sys.argv[1:]
seed_everything(0)
points = torch.randn(16, 3)
trainer = Trainer(
    default_root_dir=folder,
    max_epochs=1,
    accelerator="cpu",
    strategy="ddp",
    devices=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[TorchprofCallback(profile())] if kind == "measured" else [],
)
model = Net()
trainer.fit(model, DataLoader(TensorDataset(points), batch_size=2))
if trainer.is_global_zero:
    print(
        [float(each) for each in torch.cat([p.flatten() for p in model.parameters()])]
    )
