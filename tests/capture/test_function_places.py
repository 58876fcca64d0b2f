"""Where the program calls functions from outside of modules."""

from __future__ import annotations

import sys

import torch
from torch import nn

from torchprof_hooks import profile
from torchprof_hooks.profiles.modules import ModuleInfo


def line() -> int:
    """The line that calls this."""
    return sys._getframe(1).f_lineno


def place(number: int) -> str:
    return f"called first at test_function_places.py:{number}"


def test_functions_outside_of_modules_have_the_place_of_their_first_call() -> None:
    small, large = torch.ones(2, 3, requires_grad=True), torch.ones(4, 3)
    net = nn.Sequential(nn.ReLU())
    with profile(functions=True) as prof:
        first = line() + 1
        hidden = torch.tanh(small)
        hidden = torch.tanh(torch.tanh(hidden))
        torch.tanh(large)  # other shapes, another line
        net(hidden).sum().backward()
        torch.sigmoid(small)
    infos = prof.profile.modules

    def place_of(name: str) -> str:
        found: ModuleInfo = infos[name]
        return found.place

    assert place_of("tanh(2x3)") == place(first)
    assert place_of("tanh(4x3)") == place(first + 2)
    assert place_of("sum(2x3)") == place(first + 3)
    assert place_of("sigmoid(2x3)") == place(first + 4)
    assert place_of("Sequential") == place(first + 3)
    assert place_of("relu(2x3)") == ""  # the module's own code calls it


def test_a_function_that_a_module_calls_first_has_the_place_outside() -> None:
    inputs = torch.ones(2, 3)
    net = nn.Sequential(nn.Tanh())
    with profile(functions=True) as prof:
        net(inputs)
        there = line() + 1
        torch.tanh(inputs)
    assert prof.profile.modules["tanh(2x3)"].place == place(there)
