"""Runs torchtitan's trainer on the CPU, where it has no attention with a backward, and
asks the device for what that does not have. Arguments: those of torchtitan.train."""

from __future__ import annotations

import importlib
import runpy
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import _utils, distributed

DEVICE: Any = SimpleNamespace(
    set_device=lambda device: None,
    device_count=lambda: 1,
    current_device=lambda: 0,
    synchronize=lambda: None,
    get_device_name=lambda device: "cpu",
    get_device_properties=lambda device: SimpleNamespace(total_memory=2**30),
    reset_peak_memory_stats=lambda: None,
    empty_cache=lambda: None,
    memory_stats=lambda device: {},
)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, enable_gqa: bool, **_: Any
) -> tuple[torch.Tensor, None]:
    found = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=enable_gqa
    )
    return found, None


with mock.patch.multiple(
    _utils,
    _get_available_device_type=lambda: "cpu",
    _get_device_module=lambda name: DEVICE,
):
    importlib.import_module("torchtitan.tools.utils")
attention: Any = importlib.import_module("torchtitan.models.common.attention")
attention.FlexAttention._compiled_flex_attn = attend
attention._compiled_create_block_mask = attention.create_block_mask
if not hasattr(distributed, "set_timeout"):  # in torch 2.13
    vars(distributed)["set_timeout"] = lambda timeout, group: None
runpy.run_module("torchtitan.train", run_name="__main__")
