"""PPO of stable-baselines3 on a pole that is to be balanced."""

from __future__ import annotations

from stable_baselines3 import PPO

model = PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu", n_steps=512)
model.learn(4096)
weights = model.policy.state_dict()
print({name: repr(value.double().sum().item()) for name, value in weights.items()})
