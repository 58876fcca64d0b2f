"""The Trainer of transformers, with accumulation of gradients and evaluation."""

from __future__ import annotations

import tempfile

import torch
from torch.utils.data import TensorDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)


def collate(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    ids, labels = zip(*rows, strict=True)
    return {"input_ids": torch.stack(ids), "labels": torch.stack(labels)}


set_seed(0)
config = BertConfig(
    vocab_size=200,
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=256,
)
data = TensorDataset(torch.randint(0, 200, (320, 32)), torch.randint(0, 2, (320,)))
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        BertForSequenceClassification(config),
        TrainingArguments(
            output_dir=folder,
            num_train_epochs=2,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=4,
            eval_strategy="epoch",
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            logging_steps=2,
            disable_tqdm=True,
        ),
        data_collator=collate,
        train_dataset=data,
        eval_dataset=data,
    )
    trainer.remove_callback(PrinterCallback)  # it prints how long things took
    trainer.train()
for entry in trainer.state.log_history:
    print({name: repr(entry[name]) for name in entry if name.endswith("loss")})
