"""Chains of modules, or of functions, and what measures them: for counts of costs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.helpers import SteadyMemory, timed_by
from tests.invisible import EveryFunction, EveryLink
from torchprof_hooks import (
    LinkHook,
    add_hook,
    delete_hook,
    function_hooks,
    link_hooks,
    profile,
)
from torchprof_hooks.instruments import devices as device_observers
from torchprof_hooks.instruments.memory import instrument as memory_instrument
from torchprof_hooks.instruments.memory.meter import MemoryMeter
from torchprof_hooks.kernel import ended_steps
from torchprof_hooks.kernel.core import CORE
from torchprof_hooks.measure.accelerator import EventClock

#: Where this package is.
PACKAGE = str(Path(torchprof_hooks.__file__).parent)
#: Lengths of the chains that are compared.
SHORT, LONG = 10, 20


Chain = Callable[[torch.Tensor], torch.Tensor]


class Case(NamedTuple):
    """Something that measures: what makes it do so, for a chain, and whether it is to
    be shown a chain of functions."""

    enter: Callable[[Any], AbstractContextManager[Any]]
    on_functions: bool = False


@contextmanager
def on_each_module(chain: nn.Module) -> Iterator[LinkHook]:
    hook = link_hooks.TimerHook()
    for module in chain.modules():
        add_hook(module, hook)
    yield hook
    for module in chain.modules():
        delete_hook(module, hook.name)


@contextmanager
def in_another_thread(chain: nn.Module) -> Iterator[None]:
    prof = profile()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(prof.__enter__).result()
        yield
        pool.submit(prof.__exit__, None, None, None).result()


def case(make: Callable[[], Any], on_functions: bool = False) -> Case:
    """A case that measures all that its thread does."""
    return Case(lambda chain: make(), on_functions)


class IdleDevice:
    """In place of ``torch.cuda`` in a build that has it, in a program that does not use
    it."""

    @staticmethod
    def is_initialized() -> bool:
        return False

    @staticmethod
    def is_current_stream_capturing() -> bool:
        raise AssertionError("it is not in use")

    @staticmethod
    def device_count() -> int:
        raise AssertionError("it is not in use")


def beside_device(**options: Any) -> Callable[[], Any]:
    """Makes what measures as it would in a build of torch for a device."""

    def make() -> Any:
        with timed_by(EventClock(IdleDevice)):
            return profile(**options)

    return make


CASES = {
    "profile()": case(profile),
    "profile() beside a device": case(beside_device()),
    "profile(memory=True)": case(lambda: profile(memory=True)),
    "profile(memory='cuda')": case(lambda: profile(memory="cuda")),
    "profile(functions=True)": case(lambda: profile(functions=True)),
    "link timer": case(lambda: link_hooks.TimerHook(history_size=100)),
    "link timer with backward": case(
        lambda: link_hooks.TimerHook(backward=True, history_size=100)
    ),
    "link timer on each module": Case(on_each_module),
    "link callbacks": case(EveryLink),
    "function timer": case(lambda: function_hooks.TimerHook(history_size=100), True),
    "function callbacks": case(EveryFunction, True),
    "profile() in another thread": Case(in_another_thread),
}


def make_comparable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what not every process has: a torch that is built for a device, so that
    hooks look for its clock, and modules of the compiler, which they ask; and memory
    that is taken and given back by others. An optimizer has been made, here or by a
    test before: one is waited for."""
    monkeypatch.delitem(sys.modules, "torch._dynamo.compiled_autograd", raising=False)
    monkeypatch.setattr(ended_steps, "any_optimizer_made", lambda: True)

    def meter(device: object) -> MemoryMeter:
        of_tensors = CORE.module is not None and device is None
        counter: Any = None if of_tensors else SteadyMemory()
        return MemoryMeter(counter)

    monkeypatch.setattr(memory_instrument, "memory_meter", meter)
    monkeypatch.setattr(device_observers, "default_device_clock", lambda: None)


def make_chain(case: Case, links: int) -> Chain:
    if not case.on_functions:
        return nn.Sequential(*(nn.ReLU() for _ in range(links)))

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(links):
            x = torch.relu(x)
        return x

    return chain


def run(chain: Chain, steps: int) -> None:
    x = torch.ones(2, requires_grad=True)
    for _ in range(steps):
        chain(x).sum().backward()
