"""Trains a GPT of Megatron core for six steps, on CPUs: its layers are split among the
processes of torchrun. The loop is ours: core has none that does without a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import distributed

# What core asks of the GPU, whatever the options.
on_cpu: Any = lambda: "cpu"  # noqa: E731
torch.cuda.current_device = on_cpu
tensor_parallel.get_cuda_rng_tracker().fork = lambda *names: nullcontext()

distributed.init_process_group("gloo")
ranks = distributed.get_world_size()
parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
torch.manual_seed(0)
config = TransformerConfig(
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    tensor_model_parallel_size=ranks,
    use_cpu_initialization=True,
    gradient_accumulation_fusion=False,
)
model = GPTModel(
    config, get_gpt_layer_local_spec(), vocab_size=64, max_sequence_length=16
)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
positions = torch.arange(16).expand(2, 16)
mask = torch.ones(1, 1, 16, 16, dtype=torch.bool).triu(1)
for _ in range(6):
    tokens = torch.randint(0, 64, (2, 16))
    optimizer.zero_grad()
    model(tokens, positions, mask, labels=tokens).mean().backward()
    optimizer.step()
distributed.destroy_process_group()
