"""Whether compiled code of well-known models is divided among their modules: a table.

python benchmarks/compiled_models.py [NAME ...]

Each model is made from a small configuration, with random weights, and trained for a
few steps, as written and compiled. It takes minutes: its C++ is compiled. Models of
libraries that are not installed are left out.

    calls    calls of kernels in its compiled code
    matched  those that Inductor has named, in the order of the code
    owned    those of which some module's call is known; others are of losses, say
    foreign  rows of modules that the model as written does not have
    fused    share of the time in compiled code that is in kernels of several modules
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from models import GPT2, ResNet
from tabulate import tabulate
from torch import nn
from torch._inductor.codecache import PyCodeCache

from torchprof_hooks import Profile, profile
from torchprof_hooks.instruments.compiled.observer import marks
from torchprof_hooks.instruments.compiled.wrapper import WrapperFunction
from torchprof_hooks.profiles.names import FUSED_CLASS

STEPS = 3
Loss = Callable[[Any], Any]
#: A model, and its loss: `compiled` is called in place of the model.
Made = tuple[nn.Module, Loss]


def _tokens() -> torch.Tensor:
    return torch.arange(64).reshape(4, 16) % 50


def _pictures(size: int = 32) -> torch.Tensor:
    return torch.rand(2, 3, size, size)


def _language_model(model: Any) -> Made:
    return model, lambda compiled: compiled(_tokens(), labels=_tokens()).loss


def gpt2() -> Made:
    """That of our other benchmarks."""

    def loss(compiled: Any) -> Any:
        return compiled(_tokens()).float().square().mean()

    return GPT2(width=64, layers=2, heads=4), loss


def transformers_gpt2() -> Made:
    """Of transformers."""
    library: Any = import_module("transformers")
    config = library.GPT2Config(
        n_embd=32, n_layer=2, n_head=2, vocab_size=50, n_positions=32
    )
    return _language_model(library.GPT2LMHeadModel(config))


def llama() -> Made:
    """Of transformers."""
    library: Any = import_module("transformers")
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = library.LlamaConfig(**size, num_attention_heads=2, vocab_size=50)
    return _language_model(library.LlamaForCausalLM(config))


def mixtral() -> Made:
    """Of transformers: a mixture of experts."""
    library: Any = import_module("transformers")
    size = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4}
    return _language_model(
        library.MixtralForCausalLM(
            library.MixtralConfig(**size, **heads, vocab_size=50)
        )
    )


def checkpointed_bert() -> Made:
    """Of transformers."""
    library: Any = import_module("transformers")
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = library.BertConfig(**size, num_attention_heads=2, vocab_size=50)
    model = library.BertForMaskedLM(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return _language_model(model)


def vit() -> Made:
    """Of transformers."""
    library: Any = import_module("transformers")
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    images = {"image_size": 32, "patch_size": 8}
    model = library.ViTForImageClassification(
        library.ViTConfig(**size, **images, num_attention_heads=2)
    )
    return model, lambda compiled: compiled(_pictures()).logits.square().mean()


def resnet() -> Made:
    """That of our other benchmarks."""
    return ResNet(8, 2, 1), lambda compiled: compiled(_pictures()).square().mean()


def lstm_cell() -> Made:
    """A cell that is called for each of the values of a sequence."""

    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTMCell(16, 32), nn.Linear(32, 4)

        def forward(self, values: torch.Tensor) -> Any:
            state = None
            for value in values:
                state = self.cell(value, state)
            assert state is not None
            return self.head(state[0])

    return Cells(), lambda compiled: compiled(torch.rand(5, 8, 16)).square().mean()


def timm_vit() -> Made:
    """Of timm."""
    library: Any = import_module("timm")
    model = library.create_model("vit_tiny_patch16_224", img_size=32, depth=2)
    return model, lambda compiled: compiled(_pictures()).square().mean()


def timm_convnext() -> Made:
    """Of timm."""
    library: Any = import_module("timm")
    size = {"depths": (1, 1, 1, 1), "dims": (16, 32, 64, 128)}
    model = library.create_model("convnext_atto", **size)
    return model, lambda compiled: compiled(_pictures()).square().mean()


def diffusers_unet() -> Made:
    """Of diffusers: a U-Net."""
    library: Any = import_module("diffusers")
    blocks = {
        "block_out_channels": (16, 32),
        "norm_num_groups": 4,
        "layers_per_block": 1,
    }
    down, up = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
    model = library.UNet2DModel(
        sample_size=16,
        down_block_types=down,
        up_block_types=up,
        layers_per_block=1,
        **blocks,
    )
    pictures = _pictures(16)
    return model, lambda compiled: compiled(pictures, 3).sample.square().mean()


MODELS = [gpt2, transformers_gpt2, llama, vit, resnet, diffusers_unet, lstm_cell]
MODELS += [mixtral, checkpointed_bert, timm_vit, timm_convnext]


def _trained(step: Callable[[], torch.Tensor]) -> Profile:
    with profile() as prof:
        for _ in range(STEPS):
            loss: Any = step()
            loss.backward()
    return prof.profile


def _names(found: Profile) -> set[str]:
    return {row.name for row in found.rows() if row.kind == "module"}


def checked(make: Callable[[], Made]) -> list[Any]:
    """A line of the table."""
    torch._dynamo.reset()
    PyCodeCache.cache_clear()
    torch.manual_seed(0)
    model, loss = make()
    as_written = _trained(lambda: loss(model))
    compiled = torch.compile(model)
    _trained(lambda: loss(compiled))
    found = _trained(lambda: loss(compiled))
    gc.collect()
    wrappers = [each for each in gc.get_objects() if isinstance(each, WrapperFunction)]
    kernels = [kernel for each in wrappers for kernel in each.kernels]
    matched = sum(len(each.kernels) for each in wrappers if each.known is not None)
    owned = sum(any(kernel.owners) for kernel in kernels)
    fused = {r.name for r in found.rows() if r.class_name == FUSED_CLASS}
    foreign = _names(found) - _names(as_written) - fused
    inside = {row.name: row.self_ns for row in found.rows() if row.kind == "module"}
    share = sum(inside[name] for name in fused) / (sum(inside.values()) or 1)
    exact = sum(row.self_ns for row in found.rows()) == found.wall_ns
    said = "; ".join([*marks.reasons(), *found.not_measured, *sorted(foreign)[:3]])
    row = [make.__name__, len(wrappers), len(kernels), matched, owned, len(foreign)]
    return [*row, f"{share:.0%}", "yes" if exact else "NO", said]


def main(names: list[str]) -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    torch._inductor.config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False
    rows = []
    for make in MODELS:
        if names and make.__name__ not in names:
            continue
        try:
            rows.append(checked(make))
        except ImportError as error:
            print(f"{make.__name__}: {error}", file=sys.stderr)
        print(rows[-1:], file=sys.stderr)
    said = ["model", "graphs", "calls", "matched", "owned", "foreign", "fused", "exact"]
    print(tabulate(rows, [*said, "said"], tablefmt="github"))


if __name__ == "__main__":
    main(sys.argv[1:])
