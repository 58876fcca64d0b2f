"""A Learner of fastai's, whose optimizers are not torch's, with modules that take less
than a tenth of a millisecond: ``fastai_fit.py EPOCHS``."""

from __future__ import annotations

import gc
import sys

import torch
from fastai.callback.progress import ProgressCallback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from torch import nn

# A full collection takes 0.2 s with all these imports, wherever it falls.
gc.freeze()
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))
items = [(torch.randn(32), torch.randint(0, 10, ())) for _ in range(2000)]
loaders = DataLoaders(DataLoader(items[:1600], bs=32), DataLoader(items[1600:], bs=32))
learner = Learner(loaders, model, loss_func=nn.CrossEntropyLoss())
learner.remove_cb(ProgressCallback)
with learner.no_logging():
    learner.fit(int(sys.argv[1]), 1e-3)
print([[repr(value) for value in row] for row in learner.recorder.values])
