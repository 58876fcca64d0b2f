from __future__ import annotations

import pytest
import torch

from torchprof_hooks.instruments.optimizers import read_optimizer
from torchprof_hooks.profiles.optimizers import OptimizerFacts


def parameters(*devices: str) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(2, device=device)) for device in devices]


@pytest.mark.parametrize(
    ("name", "options", "has", "uses"),
    [
        ("Adam", {}, "fused foreach", ""),
        ("AdamW", {"fused": True}, "fused foreach", "fused"),
        ("Adam", {"fused": False}, "fused foreach", ""),
        ("Adam", {"differentiable": True}, "", ""),
        ("SGD", {"fused": True}, "fused foreach", "fused"),
        ("RMSprop", {}, "foreach", ""),
        ("Adamax", {"foreach": True}, "foreach", "foreach"),
        ("SparseAdam", {}, "", ""),
        ("LBFGS", {}, "", ""),
    ],
)
def test_forms(name: str, options: dict[str, bool], has: str, uses: str) -> None:
    optimizer = getattr(torch.optim, name)(parameters("cpu"), lr=0.1, **options)
    facts = read_optimizer(optimizer)
    assert facts == OptimizerFacts(
        name,
        1,
        "fused" in has,
        "fused" in uses,
        "cpu",
        can_foreach="foreach" in has,
        is_foreach="foreach" in uses,
    )


@pytest.mark.parametrize(
    ("devices", "options", "is_foreach"),
    [
        (("cpu",), {}, False),
        (("meta",), {}, True),
        (("meta",), {"foreach": False}, False),
        (("cpu", "meta"), {}, False),
    ],
)
def test_on_accelerators_foreach_is_the_default(
    devices: tuple[str, ...], options: dict[str, bool], is_foreach: bool
) -> None:
    facts = read_optimizer(torch.optim.RMSprop(parameters(*devices), **options))
    assert (facts.can_foreach, facts.is_foreach) == (True, is_foreach)


def test_parameters_of_all_groups_on_their_devices() -> None:
    here, there = parameters("cpu", "cpu"), parameters("meta")
    both = torch.optim.SGD([{"params": here}, {"params": there}], 0.1)
    assert read_optimizer(both) == OptimizerFacts(
        "SGD", 3, True, False, "", can_foreach=True
    )
    assert read_optimizer(torch.optim.SGD(there, 0.1)).device == "meta"


def test_an_optimizer_of_somebody_else() -> None:
    class Mine(torch.optim.Optimizer):
        """Steps no further."""

    facts = read_optimizer(Mine(parameters("cpu"), {}))
    assert facts == OptimizerFacts("Mine", 1, False, False, "cpu")
    assert read_optimizer(object()) == OptimizerFacts("object", 0, False, False, "")
