"""Models whose layers can be checkpointed: the memory of a step is predicted from the
plain model, and measured with layers that are really checkpointed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from tabulate import tabulate
from torch import nn
from torch.utils.checkpoint import checkpoint

from torchprof_hooks import Profile, profile
from torchprof_hooks.documents.render.units import best_byte_format
from torchprof_hooks.profiles.memory import MemoryStep

#: Steps of a run: what optimizers keep is there from the second one on.
STEPS = 4


class Trained(NamedTuple):
    """A model and what is trained with it. layers: names of those to be checkpointed.

    batches: how many are accumulated in a step.
    """

    model: nn.Module
    inputs: Callable[[], torch.Tensor]
    layers: list[str]
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam
    batches: int = 1
    autocast: bool = False


class Prediction(NamedTuple):
    """Peaks in bytes: of the plain model; and of the checkpointed one, as predicted and
    as measured."""

    layers: tuple[str, ...]
    plain: int
    predicted: int
    measured: int


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, use_reentrant: bool = False) -> None:
        super().__init__()
        self.inner = inner
        self.use_reentrant = use_reentrant

    def forward(self, *inputs: Any) -> Any:
        return checkpoint(self.inner, *inputs, use_reentrant=self.use_reentrant)


class Residual(nn.Module):
    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.inner(x)
        return out


class Experts(nn.Module):
    """Each token goes to one of some experts."""

    def __init__(self, size: int, count: int) -> None:
        super().__init__()
        self.gate = nn.Linear(size, count)
        self.experts = nn.ModuleList(
            nn.Sequential(
                nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size)
            )
            for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, -2)
        weights = self.gate(flat).softmax(-1)
        chosen, out = weights.argmax(-1), torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            tokens = (chosen == number).nonzero().squeeze(-1)
            if len(tokens):
                found = expert(flat[tokens]) * weights[tokens, number, None]
                out = out.index_add(0, tokens, found)
        return x + out.view_as(x)


class UNet(nn.Module):
    def __init__(self, width: int, depth: int = 3) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(convolutions(width, width) for _ in range(depth))
        self.up = nn.ModuleList(convolutions(2 * width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        seen = []
        for down in self.down:
            x = down(x)
            seen.append(x)
            x = nn.functional.max_pool2d(x, 2)
        for up in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0)
            x = up(torch.cat([x, seen.pop()], 1))
        return x


class Shared(nn.Module):
    """One block, used several times."""

    def __init__(self, block: nn.Module, times: int) -> None:
        super().__init__()
        self.block = block
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.block(x)
        return x


class Recurrent(nn.Module):
    def __init__(self, size: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.LSTM(size, size, batch_first=True) for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)[0]
        return x


def convolutions(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


def transformer_block(size: int, dropout: float = 0.0) -> nn.Module:
    return nn.TransformerEncoderLayer(
        size, 4, 4 * size, dropout, batch_first=True, norm_first=True
    )


def mlp_block(size: int) -> nn.Module:
    return Residual(nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.GELU(),
                    nn.Linear(4 * size, size))  # fmt: skip


def chain(make: Callable[[], nn.Module], count: int) -> nn.Module:
    return nn.Sequential(*[make() for _ in range(count)])


def numbered(*counts: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{number}" for number in range(*counts)]


def sequences(batch: int = 8) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(batch, 64, 64)


def pictures(size: int = 32, channels: int = 3) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(4, channels, size, size)


#: Ten models. Each makes a new one.
MODELS: dict[str, Callable[[], Trained]] = {
    "MLP": lambda: Trained(
        chain(lambda: mlp_block(128), 8), lambda: torch.randn(256, 128), numbered(8)
    ),
    "transformer": lambda: Trained(
        chain(lambda: transformer_block(64), 6), sequences(), numbered(6)
    ),
    "transformer with dropout, AdamW": lambda: Trained(
        chain(lambda: transformer_block(64, 0.1), 6),
        sequences(),
        numbered(6),
        torch.optim.AdamW,
    ),
    "transformer, accumulated": lambda: Trained(
        chain(lambda: transformer_block(64), 4), sequences(4), numbered(4), batches=3
    ),
    "transformer, autocast": lambda: Trained(
        chain(lambda: transformer_block(64), 4), sequences(), numbered(4), autocast=True
    ),
    "LSTM": lambda: Trained(
        Recurrent(64, 4), sequences(), numbered(4, prefix="layers.")
    ),
    "residual convolutions": lambda: Trained(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            *[Residual(convolutions(16, 16)) for _ in range(5)],
        ),
        pictures(),
        numbered(1, 6),
        torch.optim.SGD,
    ),
    "mixture of experts": lambda: Trained(
        chain(lambda: Experts(64, 4), 4), sequences(), numbered(4)
    ),
    "U-Net": lambda: Trained(UNet(16), pictures(), numbered(3, prefix="down.")),
    "shared block": lambda: Trained(
        Shared(transformer_block(64), 5), sequences(), ["block"]
    ),
}


def with_batch(trained: Trained, size: int) -> Trained:
    """The same with another batch size."""
    shape = trained.inputs().shape[1:]
    return trained._replace(inputs=lambda: torch.randn(size, *shape))


def run(trained: Trained, steps: int = STEPS) -> None:
    """Train it."""
    optimizer = trained.optimizer(trained.model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(trained.batches):
            with torch.autocast("cpu", enabled=trained.autocast):
                inputs = trained.inputs().requires_grad_()  # else one kind cannot
                loss = trained.model(inputs).float().square().mean()
            loss.backward()
        optimizer.step()


def profiled(trained: Trained) -> Profile:
    """The profile of a run: always with the same numbers, as experts that get nothing
    take less memory."""
    torch.manual_seed(0)
    with profile(memory="cpu") as prof:
        run(trained)
    return prof.profile


def measured(trained: Trained) -> MemoryStep:
    """The memory of a step of it."""
    memory = profiled(trained).memory
    assert memory is not None
    assert memory.step is not None
    return memory.step


def checkpointed(
    trained: Trained, layers: list[str], use_reentrant: bool = False
) -> Trained:
    """The same, with some layers checkpointed."""
    for name in layers:
        inner = trained.model.get_submodule(name)
        trained.model.set_submodule(name, Checkpointed(inner, use_reentrant))
    return trained


def predictions(
    make: Callable[[], Trained], use_reentrant: bool = False
) -> Iterator[Prediction]:
    """Of the first layer alone, and of all of them, as far as they are told."""
    plain = measured(make())
    top = type(make().model).__name__
    layers = make().layers
    for chosen in [layers] if len(layers) == 1 else [layers[:1], layers]:
        names = {f"{top}.{name}" for name in chosen}
        for told in plain.checkpointing:
            if set(told.modules) == names:
                changed = measured(checkpointed(make(), chosen, use_reentrant))
                peaks = plain.peak_bytes, told.peak_bytes, changed.peak_bytes
                yield Prediction(tuple(chosen), *peaks)


def main() -> None:
    """Print what is predicted, and what is measured."""
    rows: list[list[object]] = []
    for name, make in MODELS.items():
        for kind in (False, True):
            found = [*predictions(make, use_reentrant=kind)][-1]
            rows.append([
                name if not kind else "",
                f"{len(found.layers)}{', reentrant' * kind}",
                *map(best_byte_format, found[1:]),
                f"{100 * (found.predicted / found.measured - 1):+.1f} %",
            ])  # fmt: skip
    titles = ["checkpointed", "layers", "plain", "predicted", "measured", "off by"]
    print(tabulate(rows, titles, colalign=["left", *["right"] * 5]))


if __name__ == "__main__":
    main()
