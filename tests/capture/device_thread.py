"""A program whose backward passes run in a thread of the engine's, as on a GPU.

torch gives each device that is not the CPU such a thread, and lets Python play the
device. Prints the calls of each row, by phase, as JSON. Run as a script: torch does not
get over the end of the process with such a device.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import torch
from torch import nn
from torch.utils import backend_registration
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

import torchprof_hooks

STEPS = 3


class Module(backend_registration._DummyBackendModule):
    """What ``torch.cuda`` is to CUDA."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def is_autocast_enabled(self) -> bool:
        return False


class OnDevice(torch.Tensor):
    """Says that it is on the device, and has its numbers on the CPU."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, requires_grad: bool = False) -> Any:
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            dtype=numbers.dtype,
            device=torch.device("made_up:0"),
            requires_grad=requires_grad,
        )
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        outputs = func(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, outputs)


def _numbers(value: Any) -> Any:
    return value.numbers if isinstance(value, OnDevice) else value


class Layer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).tanh()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Layer(), Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.b(self.a(x))
        return result


def run(is_checkpointed: bool, functions: bool) -> dict[str, dict[str, int]]:
    threads = set()
    model = Net()
    with torchprof_hooks.profile(functions=functions) as prof:
        for _ in range(STEPS):
            x: Any = OnDevice(torch.ones(3), requires_grad=True)
            x.register_hook(lambda grad: threads.add(threading.get_ident()))
            y = (
                checkpoint(model, x, use_reentrant=True, preserve_rng_state=False)
                if is_checkpointed
                else model(x)
            )
            y.sum().backward()
    assert threads
    assert threading.get_ident() not in threads
    return {
        row.name: {phase: sums.calls for phase, sums in row.phases.items()}
        for row in prof.profile.rows()
    }


if __name__ == "__main__":
    backend_registration._setup_privateuseone_for_python_backend(
        "made_up", backend_module=Module()
    )
    print(json.dumps(run("checkpoint" in sys.argv, "functions" in sys.argv)))
    sys.stdout.flush()
    os._exit(0)
