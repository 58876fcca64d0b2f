"""PPO of stable-baselines3 on a pole that is to be balanced: ``baselines_ppo.py
ROLLOUTS``."""

from __future__ import annotations

import sys

import torch
from stable_baselines3 import PPO

ROLLOUT = 512

torch.set_num_threads(1)

model = PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu", n_steps=ROLLOUT)
model.learn(int(sys.argv[1]) * ROLLOUT)
weights = model.policy.state_dict()
print({name: repr(value.double().sum().item()) for name, value in weights.items()})
