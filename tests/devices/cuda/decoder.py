"""A program whose device waits for the host, to be profiled as a whole:
``python -m tests.devices.cuda.decoder PROFILE`` makes the sample device_idle."""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import torchprof_hooks
from tests.devices.cuda import planted

US = 1000
#: What kernels take: those that are not named, products, and others by their names.
DEFAULT_NS, GEMM_NS = 20 * US, 500 * US
PLANS = {
    "flash_fwd_kernel": 2000 * US,
    "flash_bwd_dq_dk_dv": 4000 * US,
    "FusedAdam": 3000 * US,
}
STEPS, LAYERS, BATCH, LENGTH, WIDTH = 8, 4, 4, 64, 128


class Slow(torch.autograd.Function):
    """The host takes some milliseconds, in forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.004)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        time.sleep(0.006)
        return gradient


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        q, k, v = self.qkv(x).view(BATCH, LENGTH, 3, 4, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        slow: Any = Slow.apply(x)
        return self.down(nn.functional.gelu(self.up(slow)))


class Layer(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(), MLP()


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Batches(Dataset[torch.Tensor]):
    """Their data take the host some time."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(0.003)
        return torch.zeros(LENGTH, WIDTH)


def main(path: str) -> None:
    planted.put(real_clock=1, latency_ns=100 * US, devices=1)
    planted.put(default_ns=DEFAULT_NS, copy_ns=DEFAULT_NS, gemm_ns=GEMM_NS)
    for part_of_name, ns in PLANS.items():
        planted.plan(part_of_name, ns)
    torch.backends.cuda.enable_cudnn_sdp(False)
    gc.disable()
    model = Decoder().half().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    sys.argv = ["train.py"]
    torchprof_hooks.enable(save=path, time_thunks=False, device_idle=True)
    for batch in DataLoader(Batches(), BATCH):
        optimizer.zero_grad()
        model(batch.to("cuda", torch.half)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
