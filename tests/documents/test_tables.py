"""The tables of a full report, and what may be asked of reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.build import ms, profile_of, with_fields, with_unmeasured
from tests.documents.found import table_in, values
from tests.documents.runs import (
    COUNTED,
    KB,
    LEAKING,
    MB,
    RUN,
    TRAINED,
    counted,
    grows,
)
from torchprof_hooks.documents.build.blocks import Asked, document
from torchprof_hooks.documents.build.memory import owners_of, peak_answer
from torchprof_hooks.documents.build.module_table import folded_modules
from torchprof_hooks.documents.build.tables import call_sites
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.documents.document import Table
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.memory import HeldMemory, MemorySummary
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import FUSED_CLASS, SortBy
from torchprof_hooks.profiles.totals import Totals


def full(profile: ProfileData, name: str, sort_by: SortBy | None = None) -> Table:
    return table_in(document(Asked(view_of(profile), "full", sort_by)), name)


# Modules and functions


@pytest.mark.parametrize(
    "sort_by", ["calls", "forward", "backward", "recompute", "device", "self", "total"]
)
def test_any_order_has_all_rows(sort_by: SortBy) -> None:
    for name in ("modules", "functions", "call_sites"):
        usual, other = full(TRAINED, name), full(TRAINED, name, sort_by)
        assert Counter(usual.labels) == Counter(other.labels)


def test_layers_of_a_kind_with_other_inputs_are_call_sites_of_their_own() -> None:
    sites = [(0, 4), (1, 4), (2, 8), (0, 5)]
    cells = {(f"Net.{n}.fc > linear({size})", "forward"): ms(1) for n, size in sites}
    profile = profile_of(cells, {f"Net.{n}.fc": "Linear" for n in range(3)})
    assert {row.name: row.calls for row in call_sites(profile)} == {
        "Net.*.fc: linear(4)": 2,
        "Net.2.fc: linear(8)": 1,
        "Net.0.fc: linear(5)": 1,
    }


def test_fused_kernels_are_said_to_be_that_once() -> None:
    name = "Net.fused: up + act"
    infos = {"Net": "Net", "Net.up": "Linear", name: FUSED_CLASS}
    cells = {(f"Net > {each}", "forward"): ms(9) for each in ("Net.up", name)}
    profile = profile_of({("Net", "forward"): ms(1), **cells}, infos)
    labels = ["Net", "up: Linear", "fused: up + act"]
    assert sorted(full(profile, "modules").labels) == sorted(labels)
    assert folded_modules(view_of(profile)).labels == labels


# Floating-point operations


def test_operations_of_modules() -> None:
    # 12 M in 80 ms; on the device's clock, where it was read, in half the time.
    assert values(full(COUNTED, "flops"), "FLOP/s") == {"Net": 150e6, "Net.fc": 200e6}
    on_device = replace(COUNTED, devices=("cuda:0",))
    assert values(full(on_device, "flops"), "FLOP/s")["Net"] == 300e6
    without_steps = with_fields(COUNTED, steps=0)
    assert values(full(without_steps, "flops"), "total")["Net"] == 12e6


@pytest.mark.parametrize("name", ["Net", "Net.fc"])
def test_operations_of_compiled_code(name: str) -> None:
    """None are counted in its backward, of 30 ms: 6 M in the other 50."""
    backward: CellKey = (("Net", "Net.fc", "linear(8x4)"), "backward")
    infos = {**COUNTED.modules, name: replace(COUNTED.modules[name], compiled=True)}
    plain = replace(COUNTED.cells[backward], flops=0)
    found = COUNTED.with_cells({**COUNTED.cells, backward: plain}, infos)
    rates = values(full(found, "flops"), "FLOP/s")
    assert rates == {"Net": 120e6, "Net.fc": pytest.approx(6e6 / 30e-3)}
    text = " ".join(found.report(full=True).split())
    assert "operations of compiled code's backward are not counted" in text

    own: dict[CellKey, Totals] = {(("Net",), "backward"): counted(1, 100)}
    found = COUNTED.with_cells({**found.cells, **own}, infos)
    rates = values(full(found, "flops"), "FLOP/s")
    assert rates["Net.fc"] == 200e6
    assert name == "Net" or not rates["Net"]


# Memory and communication


def test_memory_that_a_second_call_of_layers_has() -> None:
    """`model[:2](x)` beside `model(x)`: names say which layers, and in which call."""
    kept = [
        grows(f"{path} > linear(8x4)", "activation", KB, 3)
        for path in ("Net#2 > Net.0", "Net > Net.2", "Net > Net.4", "Net#2 > Net.1")
    ]
    classes = {"Net.0": "ReLU", "Net.1": "Tanh", "Net.2": "Linear", "Net.4": "Linear"}
    found = replace(
        LEAKING,
        modules={
            n: ModuleInfo(c) for n, c in {"Net": "N", "Net#2": "N", **classes}.items()
        }
        | {"linear(8x4)": ModuleInfo("linear", "function")},
    )
    assert [owner.label for owner in owners_of(found, kept)] == [
        "Net.*: 2 Linear",
        "Net.0 in Net#2",
        "Net.1 in Net#2",
    ]


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"0": 8, "2": 8}, "2 x 8.00MB in Net.*: Linear"),
        ({"0": 8, "2": 1}, "9.00MB in Net.*: 2 Linear, of which 8.00MB in Net.0"),
        ({"0": 2, "1": 8, "2": 2}, ""),  # most is in the only one of another class
        ({"0": 8, "1": 8}, ""),
        ({"blocks.0.fc": 8, "blocks.1": 8}, "2 x 8.00MB in Net.blocks.*: Block"),
    ],
)
def test_layers_that_have_most_of_a_kind(sizes: dict[str, int], text: str) -> None:
    classes = {"0": "Linear", "1": "ReLU", "2": "Linear"}
    classes |= dict.fromkeys(("blocks.0", "blocks.1"), "Block")
    at_peak = [
        HeldMemory(("Net", f"Net.{name}"), "forward", "activation", size * MB)
        for name, size in sizes.items()
    ]
    memory = MemorySummary("cpu", 20 * MB, ("Net",), at_peak=(*at_peak,))
    infos = {f"Net.{name}": ModuleInfo(kind) for name, kind in classes.items()}
    profile = replace(LEAKING, memory=memory, modules={"Net": ModuleInfo("N"), **infos})
    answer = peak_answer(profile, "")
    assert answer is not None
    total = f"activations {sum(sizes.values())}.00MB"
    assert f"{total} ({text})" * bool(text) in answer.evidence
    assert ("most in " in answer.evidence) == (not text)


def test_the_only_layer_of_its_kind_has_its_own_name() -> None:
    """The others of its class are not at the peak, or there are none."""
    held = [HeldMemory(("Net", "Net.1.l"), "forward", "activation", MB)]
    infos = {n: ModuleInfo("N") for n in ("Net", "Net.1", "Net.1.l")}
    [owner] = owners_of(replace(LEAKING, modules=infos), held)
    assert owner.label == "Net.1.l"


# All of it


def check_size(text: str, width: int = 120, lines: int = 40) -> None:
    assert len(text.splitlines()) <= lines
    assert max(map(len, text.splitlines())) <= width


def test_thousands_of_modules_are_a_screen() -> None:
    groups = [f"Net.{letter}{n}" for letter in "abcdefghij" for n in range(5)]
    names = {f"{group}.{n}": "Linear" for group in groups for n in range(40)}
    cells = {(f"Net > {name}", "forward"): ms(1, 2) for name in names}
    text = profile_of(cells, {"Net": "Net", **names}).report()
    check_size(text)
    assert "40 Linear" in text


@pytest.mark.parametrize("is_full", [False, True])
def test_nothing_was_called(is_full: bool) -> None:
    text = Profile(not_measured=("FLOPs",)).report(full=is_full)
    assert "No module was called" in text
    assert "FLOPs" in text
    text = with_unmeasured(Profile(), 3, 10).report(full=is_full)
    assert "No step was measured" in text


@pytest.mark.parametrize(
    "given", [{"unit": "ms"}, {"max_rows": 3}, {"sort_by": "self"}], ids=str
)
def test_what_is_for_tables_is_refused_without_them(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ValueError, match=rf"^{name} is for the tables of report\("):
        RUN.report(**given)
    assert RUN.report(full=True, **given)
