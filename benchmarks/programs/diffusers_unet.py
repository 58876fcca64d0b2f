"""A small diffusion model learns noise; then it makes a picture: ``diffusers_unet.py
STEPS``."""

from __future__ import annotations

import sys

import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(0)
model = UNet2DModel(
    sample_size=16,
    in_channels=1,
    out_channels=1,
    block_out_channels=(32, 64),
    layers_per_block=1,
    norm_num_groups=8,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
scheduler = DDPMScheduler(num_train_timesteps=100)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(int(sys.argv[1])):
    pictures, noise = torch.randn(8, 1, 16, 16), torch.randn(8, 1, 16, 16)
    times = torch.randint(0, 100, (8,))
    noisy = scheduler.add_noise(pictures, noise, times)
    loss = F.mse_loss(model(noisy, times).sample, noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(repr(loss.item()))
pipeline = DDPMPipeline(model, scheduler)
pipeline.set_progress_bar_config(disable=True)
made = pipeline(
    num_inference_steps=10,
    output_type="np",
    generator=torch.Generator().manual_seed(0),
)
print(made.images.sum())
