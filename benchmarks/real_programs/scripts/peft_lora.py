"""Low-rank adapters on a small Llama."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=256,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
)
model = get_peft_model(
    LlamaForCausalLM(config),
    LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
for _ in range(120):
    ids = torch.randint(0, 256, (4, 64))
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(repr(loss.item()))
