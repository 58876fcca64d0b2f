"""Models for the benchmarks, built from configurations: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook


class Attention(nn.Module):
    """Causal self-attention as in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.resid_dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        return cast("Tensor", self.resid_dropout(self.c_proj(mixed)))


class FeedForward(nn.Module):
    """The two linear layers of a block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.c_proj = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.dropout(self.c_proj(self.act(self.c_fc(x)))))


class Block(nn.Module):
    """A pre-norm transformer block: 12 modules with itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return cast("Tensor", x + self.mlp(self.ln_2(x)))


class GPT2(nn.Module):
    """GPT-2 in small: by default 6 layers of width 64."""

    def __init__(self, width: int = 64, layers: int = 6, heads: int = 4) -> None:
        super().__init__()
        self.wte = nn.Embedding(256, width)
        self.wpe = nn.Embedding(64, width)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        return cast("Tensor", self.lm_head(self.ln_f(x)))


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut, as in a small ResNet, with ReLUs in place."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _convolution(outputs, outputs, 3, 1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential()
        if stride > 1:
            self.downsample.append(_convolution(inputs, outputs, 1, stride))
            self.downsample.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.downsample(x)
        return cast("Tensor", self.relu(y))


class ResNet(nn.Module):
    """A residual network for small pictures: by default 3 stages of 3 blocks."""

    def __init__(self, width: int = 16, stages: int = 3, blocks: int = 3) -> None:
        super().__init__()
        self.conv1 = _convolution(3, width, 3, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.layers = nn.Sequential()
        for stage in range(stages):
            outputs = width << stage
            inputs = outputs // 2 if stage else width
            for block in range(blocks):
                first = block == 0
                self.layers.append(
                    ResidualBlock(
                        inputs if first else outputs, outputs, 1 + (first and stage > 0)
                    )
                )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width << (stages - 1), 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.avgpool(self.layers(x))
        return cast("Tensor", self.fc(x.flatten(1)))


def _convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class LSTMLanguageModel(nn.Module):
    """An embedding, two layers of LSTM, a head."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.lstm(self.embedding(tokens))
        return cast("Tensor", self.head(self.dropout(x)))


def gpt2_step() -> tuple[Callable[[], None], int]:
    """A training step of the small GPT-2, and its number of modules."""
    workload = gpt2_small()
    return workload.step, workload.modules


def chain_step(make: Callable[[], nn.Module], count: int = 100) -> Callable[[], None]:
    """Forward and backward of a chain of small modules."""
    model = nn.Sequential(*(make() for _ in range(count)))
    x = torch.randn(4, 8, requires_grad=True)
    return lambda: model(x).sum().backward()


class Workload(NamedTuple):
    """A training step: forward, loss, backward, optimizer.

    modules: how many module calls it makes.
    loss: the forward alone.
    """

    name: str
    step: Callable[[], None]
    model: nn.Module
    modules: int
    loss: Callable[[], Tensor]


def training(
    name: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[], Tensor],
) -> Workload:
    """A workload that minimises `loss()`. Runs it once, to count its modules."""

    def step() -> None:
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    calls: list[nn.Module] = []
    with register_module_forward_hook(lambda module, *_: calls.append(module)):
        step()
    return Workload(name, step, model, len(calls), loss)


def chain(device: str = "cpu") -> Workload:
    """100 small linear layers, one after another."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(100))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.randn(4, 8, device=device, requires_grad=True)
    return training(
        "100 x nn.Linear(8, 8)", model, optimizer, lambda: model(x).square().mean()
    )


def gpt2_small(device: str = "cpu") -> Workload:
    """6 layers of width 64."""
    return language_model("GPT-2 small", GPT2(), (4, 32), device)


def gpt2_large(device: str = "cpu") -> Workload:
    """8 layers of width 1024: on a GPU, kernels take longer than launching them."""
    return language_model("GPT-2, width 1024", GPT2(1024, 8, 16), (128, 64), device)


def gpt2_middle(device: str = "cpu") -> Workload:
    """8 layers of width 256: a step takes some 0.3 s on one core."""
    return language_model("GPT-2 middle", GPT2(256, 8, 8), (8, 64), device)


def lstm(device: str = "cpu") -> Workload:
    """Few modules, of which one does nearly all the work."""
    return language_model("LSTM", LSTMLanguageModel(), (8, 32), device)


def language_model(
    name: str, model: nn.Module, shape: tuple[int, int], device: str
) -> Workload:
    """Training of a model that maps tokens to logits, on one batch."""
    optimizer = torch.optim.AdamW(model.to(device).parameters(), 1e-4)
    tokens, targets = torch.randint(0, 256, (2, *shape), device=device)
    return training(
        name,
        model,
        optimizer,
        lambda: F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()),
    )


def resnet(device: str = "cpu") -> Workload:
    """20 layers, trained on 8 pictures of 32 x 32."""
    return image_model("ResNet", ResNet(), 8, device)


def resnet_large(device: str = "cpu") -> Workload:
    """20 layers of four times the width, on 256 pictures."""
    return image_model("ResNet, width 64", ResNet(64), 256, device)


def image_model(name: str, model: nn.Module, pictures: int, device: str) -> Workload:
    """Training of a model that maps pictures to logits, on one batch."""
    optimizer = torch.optim.SGD(model.to(device).parameters(), 1e-3, momentum=0.9)
    batch = torch.randn(pictures, 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (pictures,), device=device)
    return training(
        name, model, optimizer, lambda: F.cross_entropy(model(batch), labels)
    )


def llama(device: str = "cpu") -> Workload:
    """4 layers of the Llama of `transformers`."""
    import transformers

    config = transformers.LlamaConfig(**_SMALL)
    return _causal_lm("Llama", transformers.LlamaForCausalLM(config), device)


def mixtral(device: str = "cpu") -> Workload:
    """4 layers of the Mixtral of `transformers`, each with 4 experts."""
    import transformers

    config = transformers.MixtralConfig(**_SMALL, num_local_experts=4)
    return _causal_lm("Mixtral", transformers.MixtralForCausalLM(config), device)


_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def _causal_lm(name: str, model: Any, device: str) -> Workload:
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    tokens = torch.randint(0, 256, (8, 32), device=device)
    return training(
        f"transformers {name}",
        model,
        optimizer,
        lambda: model(input_ids=tokens, labels=tokens, use_cache=False).loss,
    )


#: All makers of workloads.
WORKLOADS: Sequence[Callable[[str], Workload]] = (
    chain,
    gpt2_small,
    gpt2_middle,
    resnet,
    lstm,
    llama,
    mixtral,
)
