"""Programs on which a rule of advice is right, and others, as near to them as may be,
on which it has to be silent."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset

from tests.attribution.test_garbage import long_collections
from tests.cores import NATIVE_CORE
from tests.documents.test_rules import rules_of
from tests.doing import DoesInBackward, in_communication
from tests.fake_clock import burn
from tests.planted import Work
from torchprof_hooks import Profile, profile
from torchprof_hooks.documents.build.rules import RULES, find_tips
from torchprof_hooks.documents.build.view import view_of

pytestmark = [
    NATIVE_CORE,
    pytest.mark.slow,
    pytest.mark.usefixtures("clock", "alone"),
]

STEPS: Final = 20

Program = Callable[[], Profile]


class Burning(torch.optim.SGD):
    """Takes so long to step."""

    milliseconds = 0.0

    def step(self, closure: Any = None) -> Any:
        burn(self.milliseconds)
        return super().step(closure)


def train(
    model: nn.Module,
    *shape: int,
    step_ms: float = 0,
    each: Callable[[int, torch.Tensor], object] = lambda number, out: None,
    **options: Any,
) -> Profile:
    """The profile of a loop, which does `each` in each step."""
    optimizer = Burning([nn.Parameter(torch.ones(1)), *model.parameters()], 1e-4)
    optimizer.milliseconds = step_ms
    with profile(**options) as prof:
        for number in range(STEPS):
            out = model(torch.ones(*(shape or (3,)), requires_grad=True))
            out.sum().backward()
            each(number, out)
            optimizer.step()
            optimizer.zero_grad()
    return prof.profile


# Memory


def keeping(detached: bool) -> Profile:
    kept: list[torch.Tensor] = []

    def keep(_: int, out: torch.Tensor) -> None:
        kept.append(out.detach().sum() if detached else out)

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    return train(model, 32, 64, each=keep, memory="cpu")


class Asks(nn.Module):
    """Asks for so many numbers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.empty(self.size)
        return x


def asking(size: int) -> Profile:
    with suppress(RuntimeError), profile(memory="cpu") as prof:
        Asks(size)(torch.ones(64))
    return prof.profile


def deep(width: int) -> Profile:
    """Layers whose activations are large, or small, beside their parameters."""
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)]
    for layer in layers:
        layer.append(Work(1, 1))
    return train(nn.Sequential(*layers), width, 64, memory="cpu")


class Scores(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x[:, None] * x[None]).softmax(-1).sum(1)


def scoring(rows: int) -> Profile:
    model = nn.Sequential(nn.Linear(64, 64), Scores())
    return train(model, rows, 64, memory="cpu")


# Time that is in no module


class Rows(IterableDataset[torch.Tensor]):
    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(STEPS):
            burn(self.milliseconds)
            yield torch.ones(3)


def loading(milliseconds: float) -> Profile:
    model = Work(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with profile() as prof:
        for batch in DataLoader(Rows(milliseconds), batch_size=None):
            model(batch).sum().backward()
            optimizer.step()
    return prof.profile


def outside(milliseconds: float) -> Profile:
    return train(Work(4, 6), each=lambda *_: burn(milliseconds))


@contextmanager
def few_objects() -> Iterator[None]:
    """To collect garbage takes no time of the machine."""
    gc.freeze()
    yield
    gc.unfreeze()


def losing(milliseconds: float) -> Profile:
    """The loss, which is a function, takes so long."""
    with Timed(sum=milliseconds):
        return train(Work(4, 6), functions=True)


def collecting(every: int) -> Profile:
    def collect(number: int, _: torch.Tensor) -> None:
        if number % every == every - 1:
            gc.collect()

    with few_objects(), long_collections():
        return train(Work(10, 15), each=collect)


def growing_collections(more_ms: float) -> Profile:
    def collect(number: int, _: torch.Tensor) -> None:
        if number % 2:
            gc.collect()

    with few_objects(), long_collections(more_ms):
        return train(Work(4, 6), each=collect)


def compiling(dynamic: bool) -> Profile:
    """A backend that takes long, for each shape, or for one that stands for all."""

    def backend(graph: Any, inputs: Any) -> Any:
        burn(30)
        return graph.forward

    torch._dynamo.reset()
    model = Work(4, 6)
    code = torch.compile(lambda x: x * 2, backend=backend, dynamic=dynamic)
    return train(model, each=lambda number, _: code(torch.ones(3 + number % 8)))


def waiting(milliseconds: float) -> Profile:
    """Another process sends late what is gathered."""
    return train(
        Work(4, 6), each=lambda *_: in_communication(lambda: burn(milliseconds))
    )


class Recomputing(nn.Module):
    def __init__(self, forward_ms: float) -> None:
        super().__init__()
        self.inner, self.rest = Work(forward_ms, 6), Work(10, 10)

    def forward(self, x: torch.Tensor) -> Any:
        return self.rest(checkpoint(self.inner, x, use_reentrant=False))


def slow_in(place: str, number: int) -> Profile:
    """One step of many has much to load, or to do outside modules."""
    model = Work(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with profile() as prof:
        loader = DataLoader(Rows(0), batch_size=None)
        for n, batch in enumerate(loader, 1):
            model(batch).sum().backward()
            if n == number and place == "outside":
                burn(30)
            if n == number and place == "garbage":
                gc.collect()
            optimizer.step()
    return prof.profile


def slow_step(place: str, number: int) -> Profile:
    with few_objects(), long_collections():
        return slow_in(place, number)


# Layers and functions


class Timed(TorchDispatchMode):
    """Each operator takes some time, those of some names another."""

    def __init__(self, milliseconds: float = 0.1, **others: float) -> None:
        super().__init__()
        self.milliseconds, self.others = milliseconds, others

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        burn(self.others.get(func.overloadpacket.__name__, self.milliseconds))
        return func(*args, **(kwargs or {}))


class Custom(nn.Module):
    """A Function of the program's own."""

    def __init__(self, backward_ms: float) -> None:
        super().__init__()
        self.backward_ms = backward_ms

    def forward(self, x: torch.Tensor) -> Any:
        burn(1)
        return DoesInBackward.apply(x, lambda: burn(self.backward_ms))


class LooksUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.table(torch.arange(3))
        return found + x[:, None]


class Hooked(nn.Linear):
    """Has a hook on its gradients."""

    def __init__(self, milliseconds: float) -> None:
        super().__init__(3, 3)
        self.register_full_backward_hook(lambda *_: burn(milliseconds) and None)


def in_time(mode: TorchDispatchMode, model: nn.Module, *shape: int) -> Profile:
    with mode:
        return train(model, *shape, functions=True)


def backward(model: nn.Module, *shape: int, **slow: float) -> Profile:
    return in_time(Timed(**slow), model, *shape)


class Typed(nn.Linear):
    """Computes in a type of its own."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(8, 8, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.weight.dtype)).float()


class ByType(TorchDispatchMode):
    """Numbers of 64 bits, and rows of more than eight, take long."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        is_slow = any(t.dtype == torch.double or 16 in t.shape for t in tensors)
        burn(8 if is_slow and "mm" in func.__name__ else 0.1)
        return func(*args, **(kwargs or {}))


def layers(*found: nn.Module) -> Profile:
    with ByType():
        return train(nn.Sequential(*found), 4, 8, functions=True)


def small(calls: int, milliseconds: float) -> Profile:
    def repeated(x: torch.Tensor) -> torch.Tensor:
        for _ in range(calls):
            x = functional.relu(x)
        return x

    class Relus(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return repeated(x)

    return in_time(Timed(milliseconds), Relus())


F32: Final = torch.float32

#: Rules, each with a program on which it is right, and such on which it is silent.
PLANTED: Final[dict[str, tuple[Program, ...]]] = {
    "growing memory": (lambda: keeping(False), lambda: keeping(True)),
    "one large tensor": (lambda: asking(1 << 50), lambda: asking(8)),
    "checkpointing": (lambda: deep(2000), lambda: deep(2)),
    "large module": (lambda: scoring(300), lambda: scoring(2)),
    "data loading": (lambda: loading(2), lambda: loading(1)),
    "other ranks": (lambda: waiting(2), lambda: waiting(1)),
    "outside modules": (
        lambda: outside(2),
        lambda: outside(1),
        lambda: losing(2),
    ),
    "garbage collection": (lambda: collecting(1), lambda: collecting(8)),
    "torch.compile": (lambda: compiling(False), lambda: compiling(True)),
    "optimizers": (
        lambda: train(Work(4, 6), step_ms=11),
        lambda: train(Work(4, 6), step_ms=2),
    ),
    "recomputing": (
        lambda: train(Recomputing(6)),
        lambda: train(Recomputing(3)),
        lambda: train(Work(4, 6)),
    ),
    "growing garbage": (
        lambda: growing_collections(8),
        lambda: growing_collections(0),
    ),
    "slow steps": (
        lambda: slow_step("garbage", 12),
        lambda: slow_step("outside", 12),
        lambda: slow_step("", 12),
    ),
    "slow backward": (
        lambda: backward(Custom(20)),
        lambda: backward(Custom(4)),
        lambda: backward(nn.Conv1d(1, 1, 1), 1, 8, convolution_backward=20),
    ),
    "layer that departs": (
        lambda: layers(Typed(F32), Typed(torch.double), Typed(F32), Typed(F32)),
        lambda: layers(*(Typed(F32) for _ in range(4))),
        lambda: layers(nn.Linear(8, 2), nn.Linear(2, 4), nn.Linear(4, 16)),
    ),
    "small functions": (lambda: small(250, 0.005), lambda: small(250, 0.05)),
}

#: Where the programs are that need a process, a device or time of their own.
ELSEWHERE: Final = {
    "memory ran out": "tests/programs/test_memory.py: test_the_tutorial",
    "reads from a device": "tests/devices/accelerator: test_advice",
    "the host": "tests/devices/accelerator: test_advice",
    "fused optimizers": "tests/programs/test_tips.py",
    "anomaly detection": "tests/programs/test_tips.py",
    "recompiles": "tests/programs/test_tips.py",
    "graph breaks": "tests/programs/test_tips.py",
    "not compiled": "tests/programs/test_tips.py",
    "around kernels": "tests/attribution/test_compiled_code.py",
}


def test_each_rule_has_programs() -> None:
    assert sorted([*PLANTED, *ELSEWHERE]) == sorted(rule.name for rule in RULES)


@pytest.mark.parametrize("rule", PLANTED)
def test_a_rule_is_right(rule: str) -> None:
    assert rule in rules_of(PLANTED[rule][0]())


def test_growing_garbage_is_told_with_the_number_of_objects() -> None:
    found = find_tips(view_of(growing_collections(8)))
    [tip] = [tip for tip in found if tip.rule == "growing garbage"]
    assert re.search(r"in step 20 \(about [\d.]+[kM] objects\)$", tip.claim), tip.claim


SILENT: Final = [(rule, n) for rule in PLANTED for n in range(1, len(PLANTED[rule]))]


@pytest.mark.parametrize(("rule", "number"), SILENT)
def test_a_rule_is_silent(rule: str, number: int) -> None:
    assert rule not in rules_of(PLANTED[rule][number]())


# What is named


def tip_of(rule: str, found: Profile) -> str:
    [tip] = [tip for tip in find_tips(view_of(found)) if tip.rule == rule]
    return str(tip)


def test_where_a_slow_backward_is() -> None:
    slow = {
        "Function DoesInBackward, which has most of it": backward(Custom(20)),
        "sparse=True": backward(LooksUp(), embedding_dense_backward=20),
        "BackwardHookFunction": backward(Hooked(20)),
        "functions=True": train(Work(1, 20)),
    }
    for words, found in slow.items():
        assert words in tip_of("slow backward", found)


def test_how_a_layer_departs() -> None:
    types = PLANTED["layer that departs"][0]()
    assert "unlike them, it calls linear(4x8, 8x8, 8; float64)" in tip_of(
        "layer that departs", types
    )
    works = [Work(1, 1), Work(9, 9), Work(1, 1), Work(1, 1)]
    alike = train(nn.Sequential(*works), functions=True)
    assert "hooks on it" in tip_of("layer that departs", alike)
    unknown = train(nn.Sequential(*works))
    assert "functions=True" in tip_of("layer that departs", unknown)


def test_stages_of_a_network_are_not_compared() -> None:
    """The last one takes longest, and all have other shapes."""
    view = view_of(PLANTED["layer that departs"][-1]())
    assert list(view.departing) == ["Sequential.2"]
    assert [each for each in view.unusual if each.departure] == []
