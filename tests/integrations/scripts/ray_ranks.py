"""Ray Train's TorchTrainer with two workers, each of which is measured.

Argument: the folder for files.
"""

from __future__ import annotations

import sys
from typing import Any

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

import torchprof_hooks


def train(config: dict[str, Any]) -> None:
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(8, 4)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torchprof_hooks.profile(save=f"{config['folder']}/profile.json"):
        for _ in range(config["steps"]):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()


folder = sys.argv[1]
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
TorchTrainer(
    train,
    train_loop_config={"folder": folder, "steps": 20},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=f"{folder}/ray"),
).fit()
ray.shutdown()
