"""Trains a tiny Llama by the Trainer of transformers for a few steps, on the CPU, and
prints its losses. Argument: the folder that the Trainer may write to."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import TensorDataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

STEPS = 12
LAYERS = 2


def collate(rows: list[tuple[torch.Tensor]]) -> dict[str, torch.Tensor]:
    ids = torch.stack([ids for (ids,) in rows])
    return {"input_ids": ids, "labels": ids}


set_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
    )
)
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    max_steps=STEPS,
    per_device_train_batch_size=4,
    use_cpu=True,
    save_strategy="no",
    report_to="none",
    logging_steps=1,
    disable_tqdm=True,
)
trainer = Trainer(
    model,
    arguments,
    data_collator=collate,
    train_dataset=TensorDataset(torch.randint(0, 64, (32, 8))),
)
trainer.remove_callback(PrinterCallback)  # it prints how long things took
trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print(repr(entry["loss"]))
