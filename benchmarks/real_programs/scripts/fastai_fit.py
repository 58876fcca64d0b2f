"""A Learner of fastai's, whose optimizers are not torch's."""

from __future__ import annotations

import torch
from fastai.callback.progress import ProgressCallback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from torch import nn

torch.manual_seed(0)
points = [(torch.randn(32), torch.randint(0, 10, ())) for _ in range(2000)]
loaders = DataLoaders(
    DataLoader(points[:1600], bs=32), DataLoader(points[1600:], bs=32)
)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))
learner = Learner(loaders, model, loss_func=nn.CrossEntropyLoss())
learner.remove_cb(ProgressCallback)
with learner.no_logging():
    learner.fit(100, 1e-3)
print([[repr(value) for value in row] for row in learner.recorder.values])
