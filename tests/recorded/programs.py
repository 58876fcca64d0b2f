"""Thirty programs and what they are measured with.

Planted ones take time on a clock that only they move; of the others, rows, calls,
operations and, where asked for, bytes are known.
"""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from tests.attribution.random_programs import Program as RandomProgram
from tests.fake_clock import burn
from tests.planted import Work
from tests.ranks.processes import run_processes
from tests.running import profiled, written
from torchprof_hooks import Profile, profile, region

STEPS = 4


@dataclass(frozen=True)
class Recorded:
    """One program.

    run: runs it and returns its profiles.
    is_planted: whether its time is that of the clock of the test.
    has_memory: whether its bytes are recorded.
    without: phases that come and go, and are not recorded.
    """

    run: Callable[[], list[Profile]]
    is_planted: bool = False
    has_memory: bool = False
    without: tuple[str, ...] = ("profiler", "garbage", "waiting")


PROGRAMS: dict[str, Recorded] = {}


def planted(run: Callable[[], list[Profile]]) -> None:
    """Record `run` with its times."""
    PROGRAMS[run.__name__] = Recorded(run, is_planted=True)


def real(run: Callable[[], list[Profile]]) -> None:
    """Record rows, calls and operations of `run`."""
    PROGRAMS[run.__name__] = Recorded(run)


def train(model: nn.Module, make: Callable[[], Any], **options: Any) -> list[Profile]:
    """`STEPS` steps of training with AdamW, and an evaluation at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with profile(**options) as prof:
        for _ in range(STEPS):
            scalar(model(make())).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            model(make())
    return [prof.profile]


def scalar(output: Any) -> torch.Tensor:
    """Some loss of any output."""
    if hasattr(output, "logits"):
        output = output.logits
    if isinstance(output, tuple):
        output = output[0]
    result: torch.Tensor = output.square().mean()
    return result


# Models, with functions; and again with their bytes


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.conv2 = nn.Conv2d(3, 3, 1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.conv1(x))
        y += x
        out: torch.Tensor = self.act(self.conv2(y))
        return out


class Experts(nn.Module):
    """Which of them is called changes from step to step, in a fixed order."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.gate = nn.Linear(8, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        weights = self.gate(x).softmax(-1)
        out: torch.Tensor = self.experts[self.calls % 3](x) * weights[:, :1]
        out += self.experts[0](x)
        return out


def gpt2() -> nn.Module:
    size: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 32}
    size |= {"bos_token_id": 0, "eos_token_id": 0, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(**size))


def bert() -> nn.Module:
    return BertForMaskedLM(
        BertConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            vocab_size=32,
            max_position_embeddings=16,
        )
    )


def tokens() -> torch.Tensor:
    return torch.arange(12).reshape(2, 6)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)),
        lambda: torch.ones(4, 8),
    ),
    "conv_net": (
        lambda: nn.Sequential(Residual(), nn.MaxPool2d(2), Residual()),
        lambda: torch.ones(2, 3, 8, 8),
    ),
    "lstm": (lambda: nn.LSTM(8, 16, 2), lambda: torch.ones(5, 2, 8)),
    "encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2
        ),
        lambda: torch.ones(2, 5, 16),
    ),
    "experts": (Experts, lambda: torch.ones(4, 8)),
    "gpt2": (gpt2, tokens),
    "bert": (bert, tokens),
}


def _training(name: str, **options: Any) -> Callable[[], list[Profile]]:
    model, make = MODELS[name]

    def run() -> list[Profile]:
        # What oneDNN allocates for itself depends on the processor.
        with torch.backends.mkldnn.flags(enabled=False):
            return train(model(), make, **options)

    return run


for _name in MODELS:
    PROGRAMS[f"{_name}_functions"] = Recorded(_training(_name, functions=True))
    PROGRAMS[f"{_name}_memory"] = Recorded(
        _training(_name, memory="cpu"), has_memory=True
    )


# Planted work


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Work(1, 2), Work(3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        burn(1)
        result: torch.Tensor = self.b(self.a(y))
        return result


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Pair(), Pair()
        self.tied = self.first.b

    def forward(self, x: torch.Tensor, reentrant: bool | None = None) -> torch.Tensor:
        x = self.first(x)
        if reentrant is None:
            x = self.second(x)
        else:
            x = checkpoint(self.second, x, use_reentrant=reentrant)
        result: torch.Tensor = self.tied(x)
        return result


def x() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.0)


def steps_of(step: Callable[[int], object], **options: Any) -> list[Profile]:
    """The profile of some steps with a burn around each."""
    with profile(**options) as prof:
        for number in range(STEPS):
            burn(1)
            step(number)
    return [prof.profile]


@planted
def training() -> list[Profile]:
    net = Net()
    optimizer = sgd(net)

    def step(_: int) -> None:
        net(x()).sum().backward()
        optimizer.step()

    return steps_of(step, functions=True)


@planted
def checkpoints() -> list[Profile]:
    net = Net()
    optimizer = sgd(net)

    def step(number: int) -> None:
        net(x(), reentrant=number % 2 == 1).sum().backward()
        optimizer.step()

    return steps_of(step)


@planted
def accumulation() -> list[Profile]:
    net = Net()
    optimizer = sgd(net)

    def step(number: int) -> None:
        net(x()).sum().backward()
        if number % 2:
            optimizer.step()

    return steps_of(step)


@planted
def double_backward() -> list[Profile]:
    net = Net()
    assert sgd(net)  # whether one was ever made matters where none steps

    def step(_: int) -> None:
        inputs = x()
        (grad,) = torch.autograd.grad(net(inputs).sum(), inputs, create_graph=True)
        grad.square().sum().backward()

    return steps_of(step)


@planted
def two_backwards() -> list[Profile]:
    net = Net()
    optimizer = sgd(net)

    def step(_: int) -> None:
        loss = net(x()).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()

    return steps_of(step)


@planted
def gan() -> list[Profile]:
    generator, critic = Pair(), Pair()
    optimizers = sgd(critic), sgd(generator)

    def step(_: int) -> None:
        fake = generator(x())
        critic(fake.detach()).sum().backward()
        optimizers[0].step()
        critic(fake).sum().backward()
        optimizers[1].step()

    return steps_of(step)


@planted
def frozen_and_evaluated() -> list[Profile]:
    net = Net()
    net.first.requires_grad_(False)
    optimizer = sgd(net)

    def step(number: int) -> None:
        net(torch.ones(3)).sum().backward()
        optimizer.step()
        if number % 2:
            with torch.no_grad():
                net(torch.ones(3))

    return steps_of(step)


@planted
def closure() -> list[Profile]:
    net = Net()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def again() -> torch.Tensor:
        loss: torch.Tensor = net(x()).square().sum()
        loss.backward()
        return loss

    return steps_of(lambda _: optimizer.step(again))


@planted
def optimizer_in_backward() -> list[Profile]:
    net = Net()
    optimizers = {p: torch.optim.SGD([p], 0.0) for p in net.parameters()}
    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    return steps_of(lambda _: net(x()).sum().backward())


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Work(1, 2)

    def forward(self, x: torch.Tensor, number: int) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        if number == 1:
            raise ValueError
        if number == 2:
            y.register_hook(self._interrupt)
        return y * 2

    def _interrupt(self, _: torch.Tensor) -> None:
        burn(2)
        raise KeyboardInterrupt


@planted
def exceptions() -> list[Profile]:
    net, after = Failing(), Work(2, 3)
    optimizer = sgd(net)

    def step(number: int) -> None:
        with suppress(ValueError, KeyboardInterrupt):
            after(net(x(), number)).sum().backward()
        optimizer.step()

    return steps_of(step)


@planted
def threads() -> list[Profile]:
    prof = profile()
    assert sgd(Net())

    def work(model: nn.Module) -> None:
        with prof:
            for _ in range(STEPS):
                model(x()).sum().backward()

    for model in (Net(), Pair()):
        thread = threading.Thread(target=work, args=(model,))
        thread.start()
        thread.join()
    return [prof.profile]


@planted
def regions_and_loading() -> list[Profile]:
    class Slow(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            burn(2)
            return super().__getitem__(index)

    net = Net()
    optimizer = sgd(net)
    loader = DataLoader(Slow(torch.ones(4, 3)), batch_size=1)
    with profile() as prof:
        for (batch,) in loader:
            with region("part"):
                burn(1)
                loss = net(batch).sum()
            loss.backward()
            optimizer.step()
    return [prof.profile]


@planted
def random_programs() -> list[Profile]:
    found = []
    for seed in range(6):
        program = RandomProgram(seed, functions=False)
        with profile() as prof:
            program.run()
        found.append(prof.profile)
    random.seed(0)
    return found


# Others


@real
def compiled() -> list[Profile]:
    inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    compiled: Any = torch.compile(inner, backend="eager")
    model = nn.Sequential(nn.Linear(8, 8), compiled)
    return train(model, lambda: torch.ones(4, 8))


@real
def functions_alone() -> list[Profile]:
    weight = nn.Parameter(torch.ones(8, 8))
    optimizer = torch.optim.SGD([weight], 0.1)

    def step(number: int) -> None:
        hidden = F.gelu(F.linear(torch.ones(number + 1, 8), weight))
        torch.einsum("ab,cb->ac", hidden, weight).sum().backward()
        optimizer.step()

    with profile(functions=True) as prof:
        for number in range(STEPS):
            step(number)
    return [prof.profile]


def _rank(_: int) -> Profile:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)))
    return train(model, lambda: torch.ones(4, 8))[0]


@real
def ranks() -> list[Profile]:
    found: list[Profile] = run_processes(_rank)
    return found


SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for _ in range(3):
        model(torch.ones(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model(torch.ones(4, 8))
"""


def _whole_program(*flags: str) -> list[Profile]:
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "profile.json"
        run = profiled(*flags, "--save", str(saved), written(Path(folder), SCRIPT))
        assert run.code == 0, run.err
        return [Profile.load(saved)]


@real
def whole_program() -> list[Profile]:
    return _whole_program()


@real
def whole_program_of_modules() -> list[Profile]:
    return _whole_program("--time-thunks=False")
