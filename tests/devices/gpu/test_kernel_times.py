"""What launches kernels is found by its module, on any device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import kernel_times
import torch
from torch import nn
from torch._C._autograd import DeviceType


class Shared(nn.Module):
    """One layer twice, and a product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(self.layer(x))
        result: torch.Tensor = self.head(x @ x)
        return result


def is_product(event: Any) -> float:
    return float(event.name == "aten::mm")


def test_products_by_module() -> None:
    model = Shared()
    x = torch.randn(4, 4, requires_grad=True)
    with kernel_times.trace(model) as traced:
        for _ in range(2):
            (model(x) @ x).sum().backward()
    sums = kernel_times.sums_by_module(traced.events, is_product)
    found = {key: count for key, count in sums.items() if count}
    # Each product has two in backward.
    assert found == {
        ("Shared.layer", "forward"): 4,
        ("Shared.layer", "backward"): 8,
        ("Shared.head", "forward"): 2,
        ("Shared.head", "backward"): 4,
        ("Shared", "forward"): 2,
        ("Shared", "backward"): 4,
        ("", "forward"): 2,
        ("", "backward"): 4,
    }
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


def event(name: str, start: int, end: int, **facts: Any) -> Any:
    """One in the shape of torch's own, with 1 us of a kernel."""
    given = {
        "thread": 1,
        "sequence_nr": -1,
        "kernels": [SimpleNamespace(duration=1.0)],
        "device_type": DeviceType.CPU,
        "is_async": False,
        **facts,
    }
    return SimpleNamespace(
        name=name, time_range=SimpleNamespace(start=start, end=end), **given
    )


def test_kernels_of_leaves_go_to_the_node_before() -> None:
    node = "autograd::engine::evaluate_function: "
    events = [
        event("module: Net", 0, 10),
        event("aten::mul", 1, 9, sequence_nr=7),
        event("aten::exp", 2, 3, sequence_nr=7),  # inside: counted once, by itself
        event("aten::mul", 4, 8, device_type=DeviceType.CUDA),  # the kernel itself
        # On a thread of the engine's, at any time.
        event(f"{node}MulBackward0", 5, 8, sequence_nr=7, thread=2, kernels=[]),
        event("aten::mul", 6, 7, thread=2),
        event(f"{node}torch::autograd::AccumulateGrad", 8, 11, thread=2, kernels=[]),
        event("aten::add_", 9, 10, thread=2),
    ]
    sums = kernel_times.sums_by_module(events, kernel_times.kernels_us)
    # The range's own "kernel" is a copy of the range.
    assert sums == {("Net", "forward"): 2, ("Net", "backward"): 2}
