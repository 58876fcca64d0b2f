"""Profiles of real models, small ones, for pages that are looked at."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchprof_hooks
from torchprof_hooks import Profile
from torchprof_hooks.reports.html.page import profile_page

STEPS: Final = 3


def _trained(model: nn.Module, loss: Callable[[], Tensor], **options: Any) -> Profile:
    optimizer = torch.optim.AdamW(model.parameters())
    with torchprof_hooks.profile(**options) as prof:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    return prof.profile


def _char_lm() -> Profile:
    """The model of the example, with functions and memory."""
    char_lm = _example("char_lm")
    config = char_lm.Config(context=32, width=64, blocks=3, batch_size=4)
    model = char_lm.CharLM(config, 50)
    ids = torch.randint(50, (1000,))

    def loss() -> Tensor:
        result: Tensor = char_lm.batch_loss(model, ids, config)
        return result

    return _trained(model, loss, functions=True, memory="cpu")


def _example(name: str) -> Any:
    """A module of examples/, which is no package."""
    path = Path(__file__).parents[3] / "examples" / f"{name}.py"
    spec = spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _llama() -> Profile:
    """A Llama of the transformers library, made from a config."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    transformers = pytest.importorskip("transformers", reason="of the extra `test`")
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    model = transformers.LlamaForCausalLM(config)
    ids = torch.randint(256, (4, 32))
    return _trained(model, lambda: model(input_ids=ids, labels=ids).loss)


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        result: Tensor = self.relu(out + x)
        return result


class ResNet(nn.Module):
    """A small one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.layers = nn.Sequential(*(_Residual(16) for _ in range(4)))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.layers(self.stem(x)).mean((2, 3)))
        return out


def _resnet() -> Profile:
    model, images = ResNet(), torch.randn(8, 3, 16, 16)
    labels = torch.randint(10, (8,))
    return _trained(model, lambda: F.cross_entropy(model(images), labels))


def _compiled() -> Profile:
    """A part of the model runs what torch.compile has made of it."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    model[0].compile(backend="eager")
    inputs = torch.randn(4, 8)
    return _trained(model, lambda: model(inputs).sum())


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def _blocks(count: int) -> Profile:
    """Blocks of 99 modules."""
    blocks = (nn.Sequential(*(_Scale() for _ in range(99))) for _ in range(count))
    model = nn.Sequential(*blocks)
    inputs = torch.ones(2)
    with torchprof_hooks.profile() as prof:
        model(inputs).sum().backward()
    return prof.profile


_MAKERS: Final[Mapping[str, Callable[[], Profile]]] = {
    "char_lm": _char_lm,
    "llama": _llama,
    "resnet": _resnet,
    "compiled": _compiled,
    "thousand": partial(_blocks, 10),
    "ten_thousand": partial(_blocks, 100),
}

NAMES: Final = tuple(_MAKERS)


@cache
def real_profile(name: str) -> Profile:
    """The profile of one of `NAMES`, measured once."""
    return _MAKERS[name]()


@cache
def real_page(name: str) -> str:
    """The page of that profile, made once."""
    return profile_page(real_profile(name))
