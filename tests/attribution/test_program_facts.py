from __future__ import annotations

import pytest
import torch

from torchprof_hooks.kernel.step_listeners import read_optimizer
from torchprof_hooks.profiles.optimizers import OptimizerFacts


def parameters(*devices: str) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(2, device=device)) for device in devices]


@pytest.mark.parametrize(
    ("name", "options", "can_fuse", "is_fused"),
    [
        ("Adam", {}, True, False),
        ("AdamW", {"fused": True}, True, True),
        ("Adam", {"fused": False}, True, False),
        ("Adam", {"differentiable": True}, False, False),
        ("SGD", {"fused": True}, True, True),
        ("RMSprop", {}, False, False),
    ],
)
def test_fused_forms(
    name: str, options: dict[str, bool], can_fuse: bool, is_fused: bool
) -> None:
    optimizer = getattr(torch.optim, name)(parameters("cpu"), lr=0.1, **options)
    expected = OptimizerFacts(name, 1, can_fuse, is_fused, "cpu")
    assert read_optimizer(optimizer) == expected


def test_parameters_of_all_groups_on_their_devices() -> None:
    here, there = parameters("cpu", "cpu"), parameters("meta")
    both = torch.optim.SGD([{"params": here}, {"params": there}], 0.1)
    assert read_optimizer(both) == OptimizerFacts("SGD", 3, True, False, "")
    assert read_optimizer(torch.optim.SGD(there, 0.1)).device == "meta"


def test_an_optimizer_of_somebody_else() -> None:
    class Mine(torch.optim.Optimizer):
        """Steps no further."""

    facts = read_optimizer(Mine(parameters("cpu"), {}))
    assert facts == OptimizerFacts("Mine", 1, False, False, "cpu")
    assert read_optimizer(object()) == OptimizerFacts("object", 0, False, False, "")
