"""Trains a small Llama with the Trainer of transformers, measured by a callback."""

from tempfile import TemporaryDirectory

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

from torchprof_hooks.integrations.transformers import TorchprofCallback


def collate(rows: list[tuple[torch.Tensor]]) -> dict[str, torch.Tensor]:
    ids = torch.stack([ids for (ids,) in rows])
    return {"input_ids": ids, "labels": ids}


def main() -> None:
    set_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
    )
    texts = TensorDataset(torch.randint(256, (64, 64)))
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=20,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            eval_strategy="steps",
            eval_steps=10,
            save_strategy="no",
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            LlamaForCausalLM(config),
            arguments,
            data_collator=collate,
            train_dataset=texts,
            eval_dataset=texts,
        )
        trainer.remove_callback(PrinterCallback)
        TorchprofCallback().attach_to(trainer)
        trainer.train()


if __name__ == "__main__":
    main()
