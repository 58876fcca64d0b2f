"""Layers about which something is unusual: that depart from their kind, or whose
backward takes many times their forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.build import MS, Cells, profile_of
from tests.documents.found import values
from tests.fake_clock import FakeClock
from tests.golden import SAMPLES, sample
from tests.planted import Work
from torchprof_hooks.documents.build import findings
from torchprof_hooks.documents.build.layers import own_ns
from torchprof_hooks.documents.build.module_table import folded_modules
from torchprof_hooks.documents.build.page_tables import trees
from torchprof_hooks.documents.build.rules import find_tips
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.totals import Totals


def calls(
    own_ms: float, count: int = 10, std_ms: float = 0, flops: int = 0, **fields: Any
) -> Totals:
    """Calls that take so long together, and differ by `std_ms`."""
    mean_ns, own_ns = own_ms * MS / count, round(own_ms * MS)
    squares = round(count * (mean_ns**2 + (std_ms * MS) ** 2))
    return Totals(
        count, own_ns, duration_ns=own_ns, squares_ns2=squares, flops=flops, **fields
    )


def layers(*forward: Totals, backward: Mapping[int, Totals] | None = None) -> Profile:
    """A run of blocks, each with a layer, and a head that takes the rest of 1000 ms."""
    cells: Cells = {}
    infos: dict[str, ModuleInfo | str] = {"Net": "Net", "Net.head": "Head"}
    for n, totals in enumerate(forward):
        block = f"Net.blocks.{n}"
        infos |= {block: "Block", f"{block}.fc": "Linear"}
        path = f"Net > {block} > {block}.fc"
        cells[path, "forward"] = totals
        if backward and n in backward:
            cells[path, "backward"] = backward[n]
    rest_ms = 1000 - sum(totals.self_ns for totals in cells.values()) / MS
    cells["Net > Net.head", "forward"] = calls(rest_ms, 1)
    return profile_of(cells, infos, steps=10)


def rows(profile: Profile) -> dict[str, tuple[str, str]]:
    """The notes and tones of the layers on a screen, by their labels."""
    table = folded_modules(view_of(profile))
    is_noted = any(column.name == "flags" for column in table.columns)
    notes = [*values(table, "flags").values()] if is_noted else [""] * len(table.labels)
    return dict(zip(table.labels, zip(notes, table.tones, strict=True), strict=True))


def flags(profile: Profile) -> list[tuple[str, str]]:
    return [(one.name, one.text) for one in view_of(profile).unusual]


SLOW_LAYER = layers(*(calls(500 if n == 1 else 20) for n in range(4)))
#: Of a kind that takes most; it may just be larger.
LARGER_LAYER = layers(calls(200), calls(200), calls(350))

# Layers that depart from their kind


@pytest.mark.parametrize(
    ("others", "slow", "departs"),
    [
        ((100, 100), calls(151), True),
        ((100, 100), calls(150), False),  # not enough times
        ((40, 40), calls(90), True),
        ((40, 40), calls(89), False),  # too little of the time
        ((100,), calls(300), False),  # of two, which one is it?
        ((20, 20), calls(200, 9, 180 / 9 / 3 * sqrt(9)), True),
        ((20, 20), calls(200, 9, 181 / 9 / 3 * sqrt(9)), False),
    ],
)
def test_when_a_layer_departs(
    others: tuple[float, ...], slow: Totals, departs: bool
) -> None:
    profile = layers(*map(calls, others), slow)
    assert bool(view_of(profile).departing) is departs


def test_more_operations_explain_more_time() -> None:
    """It has its own line, but nothing is unusual about it."""

    def twice(flops: int) -> Profile:
        return layers(
            calls(100, flops=10), calls(100, flops=10), calls(200, flops=flops)
        )

    assert flags(twice(20)) == []
    assert "2.fc: Linear" in rows(twice(20))
    assert flags(twice(10)) == [("Net.blocks.2.fc", "2.0x its siblings")]


def test_blocks_that_depart_have_their_layers_below_them(clock: FakeClock) -> None:
    class Block(Work):
        def __init__(self, forward_ms: float) -> None:
            super().__init__(forward_ms, 2)
            self.fc = Work(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.fc(x))

    model = nn.Sequential(*(Block(50 if n == 3 else 1) for n in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchprof_hooks.profile() as prof:
        for _ in range(5):
            model(torch.ones(())).backward()
            optimizer.step()
    found = rows(prof.profile)
    labels = ["Sequential", "3: Block", "fc: Work", "*: 5 Block", "fc: 5 Work"]
    assert list(found) == labels
    assert found["3: Block"] == ("17x its siblings", "hot")


# Backward


def slow_backward(forward_ms: float, backward: Totals) -> Profile:
    return layers(calls(forward_ms), backward={0: backward})


@pytest.mark.parametrize(
    ("forward_ms", "backward", "text"),
    [
        (10, calls(60), "backward 6.0x forward"),
        (10, calls(59), ""),
        (8, calls(49), ""),  # too little of the time
        (10, calls(90, 9, 30 / 9 / 3 * sqrt(9)), "backward 9.0x forward"),
        (10, calls(90, 9, 31 / 9 / 3 * sqrt(9)), ""),
    ],
)
def test_a_backward_of_many_times_the_forward(
    forward_ms: float, backward: Totals, text: str
) -> None:
    found = [flag for _, flag in flags(slow_backward(forward_ms, backward))]
    assert "".join(found) == text


def test_a_note_stands_where_layers_of_its_kind_take_most() -> None:
    """Blocks of two classes have layers of one kind, of which few are slow."""
    cells: Cells = {("Net", "forward"): calls(800)}
    infos: dict[str, ModuleInfo | str] = {"Net": "Net"}
    for n, backward_ms in enumerate((80, 80, 1)):
        block = f"Net.blocks.{n}"
        infos |= {block: "Wide" if n < 2 else "Narrow", f"{block}.fc": "Linear"}
        path = f"Net > {block} > {block}.fc"
        cells[path, "forward"] = calls(1 if n < 2 else 20)
        cells[path, "backward"] = calls(backward_ms)
    view = view_of(profile_of(cells, infos, steps=10))
    table = folded_modules(view)
    [notes] = [column.values for column in table.columns if column.name == "flags"]
    found = dict(zip(table.labels, notes, strict=True))
    assert found["fc: 2 Linear"] == "backward 7.3x forward"
    assert found["fc: Linear"] == ""
    [flags_of_tree] = [c.values for c in next(trees(view)).columns if c.name == "flags"]
    assert sorted(map(str, flags_of_tree)) == [*[""] * 6, "backward 7.3x forward"]


def test_what_is_said_of_a_slow_backward() -> None:
    [tip] = find_tips(view_of(slow_backward(10, calls(900))))
    assert (
        "takes 90.0 % of the run (900.00ms) in backward, 90x its forward" in tip.claim
    )
    assert tip.remedy == "profile(functions=True) tells in which function."


def test_own_backward_of_compiled_code_is_compared_with_nothing() -> None:
    """It is that of all kernels of no other module."""
    found = slow_backward(10, calls(90))
    infos = {name: replace(info, compiled=True) for name, info in found.modules.items()}
    assert flags(replace(found, modules=infos)) == []


# Ordinary models


#: One of its layers is wider than the others.
UNUSUAL = ("slow_steps",)


@pytest.mark.parametrize(
    "name", [path.stem for path in SAMPLES.glob("*.json") if path.stem not in UNUSUAL]
)
def test_nothing_is_unusual_about_models_of_the_documentation(name: str) -> None:
    view = view_of(sample(name))
    assert [*view.unusual] == []
    assert dict(view.departing) == {}


def test_many_layers_are_compared_in_little_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many comparisons as layers, not as pairs of these."""
    asked = Counter[str]()

    def counting(found: Any, device: str) -> int:
        asked["times"] += 1
        return own_ns(found, device)

    monkeypatch.setattr(findings, "own_ns", counting)
    many = layers(calls(500), *(calls(0.1) for _ in range(2000)))
    assert list(view_of(many).departing) == ["Net.blocks.0.fc"]
    assert asked["times"] < 5 * 4002


@pytest.mark.parametrize(
    "values", [(1, 2, 3), (5, 1, 1, 7), (2, 2, 2), (0, 9, 4, 4, 8)]
)
def test_the_median_of_the_others(values: tuple[int, ...]) -> None:
    for n, value in enumerate(values):
        others = [*values[:n], *values[n + 1 :]]
        assert findings._median_without(sorted(values), value) == median(others)
