"""Architectures of the transformers library train the same, measured and not, and what
a profile says of them is consistent."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.invisible import MEASURERS, exact
from tests.thorough import THOROUGH, some_ways
from torchprof_hooks import Profile

for switch in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ[switch] = "1"  # read when the library is imported
transformers = pytest.importorskip(
    "transformers", reason="transformers, of the extra `test`, is not installed"
)
transformers.logging.set_verbosity_error()

Batch = dict[str, Any]
STEPS = 3
#: Of most text models, under the names that most of them use.
TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
#: Of models of images, likewise.
IMAGE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}


def tokens(length: int = 8) -> torch.Tensor:
    return torch.randint(3, 64, (2, length))


def pixels(size: int = 16) -> torch.Tensor:
    return torch.randn(2, 3, size, size)


def text_batch() -> Batch:
    ids = tokens()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def image_batch(size: int = 16) -> Batch:
    return {"pixel_values": pixels(size), "labels": torch.tensor([0, 1])}


def gpt2() -> tuple[nn.Module, Batch]:
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4
    )
    return transformers.GPT2LMHeadModel(config), text_batch()


def bert() -> tuple[nn.Module, Batch]:
    config = transformers.BertConfig(**TEXT)
    return transformers.BertForMaskedLM(config), text_batch()


def llama() -> tuple[nn.Module, Batch]:
    config = transformers.LlamaConfig(**TEXT, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config), text_batch()


def checkpointed_llama(use_reentrant: bool) -> tuple[nn.Module, Batch]:
    model: Any
    model, batch = llama()
    options = {"use_reentrant": use_reentrant}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=options)
    else:  # its name in older versions
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    return model, batch | {"use_cache": False}


def t5() -> tuple[nn.Module, Batch]:
    config = transformers.T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config), text_batch()


def vit() -> tuple[nn.Module, Batch]:
    config = transformers.ViTConfig(**IMAGE)
    return transformers.ViTForImageClassification(config), image_batch()


def mixtral() -> tuple[nn.Module, Batch]:
    config = transformers.MixtralConfig(
        **TEXT, num_key_value_heads=2, num_local_experts=4, output_router_logits=True
    )
    return transformers.MixtralForCausalLM(config), text_batch()


def mamba() -> tuple[nn.Module, Batch]:
    config = transformers.MambaConfig(
        vocab_size=64, hidden_size=32, state_size=4, num_hidden_layers=2
    )
    batch = text_batch()
    del batch["attention_mask"]
    return transformers.MambaForCausalLM(config), batch


def whisper() -> tuple[nn.Module, Batch]:
    config = transformers.WhisperConfig(
        vocab_size=64,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=16,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    batch = {"input_features": torch.randn(2, 8, 32), "labels": tokens()}
    return transformers.WhisperForConditionalGeneration(config), batch


def clip() -> tuple[nn.Module, Batch]:
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = transformers.CLIPConfig(
        text_config={**TEXT, **ends, "projection_dim": 16},
        vision_config={**IMAGE, "projection_dim": 16},
        projection_dim=16,
    )
    ids = tokens()
    ids[:, -1] = 2
    batch = {"input_ids": ids, "pixel_values": pixels(), "return_loss": True}
    return transformers.CLIPModel(config), batch


def convnext() -> tuple[nn.Module, Batch]:
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, drop_path_rate=0.1
    )
    return transformers.ConvNextForImageClassification(config), image_batch(32)


ARCHITECTURES: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "GPT-2": gpt2,
    "BERT": bert,
    "Llama": llama,
    "Llama, checkpointed": lambda: checkpointed_llama(use_reentrant=False),
    "Llama, checkpointed reentrantly": lambda: checkpointed_llama(use_reentrant=True),
    "T5": t5,
    "ViT": vit,
    "Mixtral": mixtral,
    "Mamba": mamba,
    "Whisper": whisper,
    "CLIP": clip,
    "ConvNeXt": convnext,
}
#: Those that others stand for.
ALIKE = "Llama", "Llama, checkpointed reentrantly", "BERT", "CLIP"
every_architecture = pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=THOROUGH if name in ALIKE else ())
        for name in ARCHITECTURES
    ],
)


class Training:
    """Some steps, and everything that they leave behind."""

    def __init__(self, architecture: str) -> None:
        torch.manual_seed(1)
        self.model, self.batch = ARCHITECTURES[architecture]()
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.kept: list[Any] = []

    def run(self, measuring: AbstractContextManager[Any]) -> Any:
        with measuring:
            for _ in range(STEPS):
                self.step()
        state = [*self.model.parameters(), *self.model.buffers()]
        return exact([self.kept, state, torch.get_rng_state()])

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.model(**self.batch).loss
        loss.backward()
        self.optimizer.step()
        self.kept.append(loss.detach())
        self.kept.append([p.grad for p in self.model.parameters()])


@every_architecture
def test_training_is_bit_identical_and_profiles_are_consistent(
    architecture: str,
) -> None:
    expected = Training(architecture).run(nullcontext())
    different = []
    for name in measurers_for(architecture):
        training, measurer = Training(architecture), MEASURERS[name]()
        if training.run(measurer) != expected:
            different.append(name)
        if not isinstance(measurer, torchprof_hooks.Profiler):
            continue
        profile = measurer.profile
        assert sum(row.self_ns for row in profile.rows()) == profile.wall_ns, name
        assert profile.steps == STEPS, name
        assert profile.aborted_calls == 0, name
        assert wrong_calls(profile, training.model) == {}, name
        assert_recomputed(profile, "checkpointed" in architecture)
    assert different == []


def measurers_for(architecture: str) -> list[str]:
    """Two of four that give a profile, and one of the others: the next architecture has
    the next ones (see `tests.thorough`)."""
    profilers = [name for name in MEASURERS if name.startswith("profile")]
    others = [name for name in MEASURERS if name not in profilers]
    number = list(ARCHITECTURES).index(architecture)
    return [*some_ways(profilers, number, 2), *some_ways(others, number, 1)]


def wrong_calls(profile: Profile, model: nn.Module) -> dict[str, tuple[int, int]]:
    """Calls, forward and backward, of modules where they should be equal and are not:
    all those that parameters got gradients through. In others there may be nothing to
    differentiate, and then there is not a single backward."""
    wrong = {}
    modules = dict(model.named_modules())
    for row in profile.rows():
        if row.kind != "module":
            continue
        calls = row.phases["forward"].calls, row.phases["backward"].calls
        module = modules.get(row.name.partition(".")[2], nn.Identity())
        has_gradient = any(p.grad is not None for p in module.parameters())
        if calls[1] != calls[0] and (has_gradient or calls[1] != 0):
            wrong[row.name] = calls
    return wrong


def assert_recomputed(profile: Profile, is_checkpointed: bool) -> None:
    """Only what is inside of the layers, and that as often as it was called."""
    recomputed = {
        row.name: (row.phases["recompute"].calls, row.phases["forward"].calls)
        for row in profile.rows()
        if row.kind == "module" and row.phases["recompute"].calls
    }
    assert bool(recomputed) == is_checkpointed
    for name, (again, calls) in recomputed.items():
        assert ".layers." in name
        assert again == calls, name
