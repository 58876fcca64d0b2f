"""Writes a tiny Llama with random weights and a tokenizer of bytes into the folder
`model`, and sums to learn into `data`, `texts` and `sums.jsonl`. Without transformers,
there are no weights."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
TEMPLATE = "{% for each in messages %}{{ each['content'] }}</s>{% endfor %}"


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")


words = [*SPECIAL.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
vocabulary = {word: number for number, word in enumerate(words)}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
told = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
write("model/tokenizer.json", tokenizer.to_str())
write("model/tokenizer_config.json", json.dumps({**told, **SPECIAL}))

sums = [(f"What is {n} + 1?", f"It is {n + 1}.") for n in range(64)]
asked = [{"instruction": ask, "input": "", "output": answer} for ask, answer in sums]
write("data/sums.json", json.dumps(asked))
write("data/dataset_info.json", json.dumps({"sums": {"file_name": "sums.json"}}))
texts = [json.dumps({"text": " ".join(each)}) for each in sums]
write("texts/train.jsonl", "\n".join(texts))
talks = [
    [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
    for ask, answer in sums
]
write("sums.jsonl", "\n".join(json.dumps({"messages": talk}) for talk in talks))

if find_spec("transformers"):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained("model")
