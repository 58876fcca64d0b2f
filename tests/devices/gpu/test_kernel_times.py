"""What launches kernels is found by its module, on any device."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import kernel_times
import torch
from kernel_times import Activity, Move, Owner, Timeline
from torch import nn


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


def test_products_by_module() -> None:
    model = Shared()
    x = torch.randn(4, 4, requires_grad=True)
    with kernel_times.trace(model) as traced:
        for _ in range(2):
            (model(x) @ x).sum().backward()
    timeline = traced.timeline()
    products = [e for e in traced.events if e.name() == "aten::mm"]
    found = Counter(timeline.at(e.start_ns()) for e in products)
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


def event(name: str, start: int, end: int, kind: str = "cpu_op", **facts: Any) -> Any:
    """One in the shape of torch's own."""
    on_host = kind in ("cpu_op", "user_annotation") or kind.endswith("_runtime")
    given = {
        "name": name,
        "start_ns": start,
        "end_ns": end,
        "duration_ns": end - start,
        "activity_type": kind,
        "sequence_nr": -1,
        "correlation_id": 0,
        "device_index": 0,
        "device_resource_id": 7,
        "device_type": SimpleNamespace(name="CPU" if on_host else "CUDA"),
        **facts,
    }
    return SimpleNamespace(
        **{key: lambda value=value: value for key, value in given.items()}
    )


NODE = "autograd::engine::evaluate_function: "


def test_leaves_belong_to_the_node_before() -> None:
    events = [
        event("module: Net", 0, 10, "user_annotation"),
        event("aten::mul", 1, 9, sequence_nr=7),
        event("aten::exp", 2, 3, sequence_nr=7),  # inside
        event("module: Net", 2, 12, "gpu_user_annotation"),  # a copy of the range
        # In a thread of the engine's.
        event(f"{NODE}MulBackward0", 20, 30, sequence_nr=7),
        event("aten::mul", 21, 22),
        event(f"{NODE}torch::autograd::AccumulateGrad", 35, 40),
        event("aten::add_", 36, 37),
    ]
    assert list(kernel_times.find_moves(events)) == [
        (0, ("Net", "forward")),
        (10, ("", "forward")),
        (20, ("Net", "backward")),
        # Nobody else's, between the nodes.
        (35, ("Net", "backward")),
        (40, ("", "forward")),
    ]


def test_a_node_belongs_to_the_operation_that_began_last_before_it() -> None:
    events = [
        event("module: Net", 0, 20, "user_annotation"),
        event("aten::linear", 1, 15, sequence_nr=3),
        event("module: Net.head", 5, 10, "user_annotation"),
        event("aten::t", 6, 7, sequence_nr=3),
        event(f"{NODE}TBackward0", 30, 31, sequence_nr=3),
    ]
    owners = [owner for _, owner in kernel_times.find_moves(events)]
    assert ("Net.head", "backward") in owners


def test_activities_have_their_launches() -> None:
    events = [
        event("gemm", 50, 60, "kernel", correlation_id=2),
        event("cudaLaunchKernel", 10, 11, "cuda_runtime", correlation_id=2),
        event("aten::mm", 5, 20, correlation_id=2),
        event("Memcpy DtoD", 30, 35, "gpu_memcpy", correlation_id=3),
        event("module: Net", 30, 60, "gpu_user_annotation", correlation_id=2),
    ]
    assert list(kernel_times.find_activities(events)) == [
        Activity((0, 7), 50, 60, 10),
        Activity((0, 7), 30, 35, None),
    ]


def test_where_the_host_was() -> None:
    net, outside = Owner("Net", "forward"), Owner("", "forward")
    timeline = Timeline([Move(10, net), Move(20, outside)])
    assert [timeline.at(time) for time in (9, 10, 19, 20)] == [
        outside,
        net,
        net,
        outside,
    ]
    assert timeline.during(10, 20) == [Move(20, outside)]
