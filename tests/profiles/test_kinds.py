"""Layers of a kind, and the table of phases."""

from __future__ import annotations

from typing import get_args

import pytest

from torchprof_hooks.profiles import names
from torchprof_hooks.profiles.kinds import (
    LayerKind,
    kinds_of_names,
    layer_around,
    without_numbers,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.phases import PHASES, kind_of_other


@pytest.mark.parametrize(
    ("name", "common", "layer"),
    [
        ("Net.blocks.3.mlp.0", "Net.blocks.*.mlp.*", "Net.blocks.3"),
        ("Net.conv2d.bn1", "Net.conv2d.bn1", ""),
        ("Net.0", "Net.*", "Net.0"),
        ("Net.0x.1", "Net.0x.*", "Net.0x.1"),
    ],
)
def test_numbers_of_layers(name: str, common: str, layer: str) -> None:
    assert without_numbers(name) == common
    assert layer_around(name) == layer


def test_the_label_of_a_kind() -> None:
    kind = LayerKind("Net.blocks.*", "Block")
    assert kind.label(["Net.blocks.0"]) == "Net.blocks.0"
    assert kind.label(["Net.blocks.0", "Net.blocks.1"]) == "Net.blocks.*: 2 Block"
    fused = LayerKind("Net.*.fused: up + gelu", "fused kernel")
    assert fused.label(["Net.0.f", "Net.1.f"]) == f"{fused.name}: 2 fused kernels"
    assert LayerKind("Net.*").label(["Net.0", "Net.1"]) == "Net.*: 2 modules"


def test_layers_that_were_not_called_are_of_the_kind_of_those_that_were() -> None:
    kind = kinds_of_names({"Net.0": ModuleInfo("Linear"), "Net.1": ModuleInfo("ReLU")})
    assert kind("Net.0") == ("Net.*", "Linear")
    assert kind("Net.1") == kind("Net.2") == ("Net.*", "ReLU")
    assert kind("Other") == ("Other", "")


def test_each_phase_and_each_row_that_is_no_module_is_in_the_table() -> None:
    assert {*PHASES} == {*get_args(names.Phase)}
    rows = {row for name, row in vars(names).items() if name.endswith("_NAME")}
    rows -= {names.MODULES_NAME, names.NOT_MEASURED_NAME}
    assert rows == {row for info in PHASES.values() for row in info.rows}
    assert all(kind_of_other(r) == p for p, info in PHASES.items() for r in info.rows)
    assert kind_of_other(names.NOT_MEASURED_NAME) == "not measured"
    assert kind_of_other(names.communication_name("all_reduce")) == "communication"
    assert kind_of_other(names.optimizer_name("SGD")) == "optimizer"
