"""Trains a replica in each process of torchrun, on the CPU, and prints where it ended,
which is the same place for all."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
from torch import distributed, nn

distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
torch.manual_seed(distributed.get_rank())
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
end = sum(parameter.sum().item() for parameter in model.parameters())
sys.stdout.write(f"{end!r}\n")
distributed.destroy_process_group()
