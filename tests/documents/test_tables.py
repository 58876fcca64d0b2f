"""The tables of a full report, and what may be asked of reports."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.build import MS, ms, profile_of, with_unmeasured
from tests.documents.found import column, table_in, values
from tests.documents.runs import ALLOCATING, COUNTED, MB, RUN, TRAINED
from tests.golden import sample
from torchprof_hooks.documents.build.blocks import Asked, document
from torchprof_hooks.documents.build.tables import call_sites
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.documents.document import Table
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import SortBy


def full(profile: ProfileData, name: str, sort_by: SortBy | None = None) -> Table:
    return table_in(document(Asked(view_of(profile), "full", sort_by)), name)


# Modules and functions


def test_the_tree_of_modules() -> None:
    tree = full(TRAINED, "modules")
    assert list(zip(tree.depths, tree.labels, strict=True)) == [
        (0, "Net"),
        (1, "fc.0: Linear"),
        (1, "fc.1: Linear"),
        (0, "(outside modules)"),
        (0, "(optimizer) SGD"),
        (0, "(backward outside modules)"),
    ]
    assert values(tree, "forward_ns")["Net"] == 52 * MS
    # Functions are parts of their modules; of a leaf, own time is all.
    assert values(tree, "forward_self_ns")["Net"] == 10 * MS
    assert values(tree, "forward_self_ns")["Net.fc.0"] is None
    assert sum(tree.shares) == pytest.approx(1)
    assert tree.importance[1] == tree.importance[2]


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


# Floating-point operations


def test_operations_of_modules() -> None:
    # Net: 55 of 80 ms in linear; fc: 55 of 60. 12 M in 80 ms are 150 M in a second.
    flops = full(COUNTED, "flops")
    assert values(flops, "forward_flops") == {"Net": 1.5e6, "Net.fc": 1.5e6}
    assert values(flops, "total") == {"Net": 6e6, "Net.fc": 6e6}
    assert values(flops, "self_flops") == {"Net": 0, "Net.fc": 6e6}
    assert values(flops, "FLOP/s") == {"Net": 150e6, "Net.fc": 200e6}
    assert column(flops, "no formula") == [25 / 80, pytest.approx(5 / 60)]
    # On the device's clock, where it was read: half the time.
    on_device = replace(COUNTED, devices=("cuda:0",))
    assert values(full(on_device, "flops"), "FLOP/s")["Net"] == 300e6
    without_steps = COUNTED.with_parts(lambda part: replace(part, steps=0))
    assert values(full(without_steps, "flops"), "total")["Net"] == 12e6


# Memory and communication


def test_bytes_are_per_call() -> None:
    # Net, with fc and block: forward 2 + 3 + 1, of which 1 + 3 remain, backward 6 + 4;
    # it is recomputed in parts only, so per forward call. Its peak is that of its own
    # calls. Acquired: 20, and 2 in fc's backward.
    memory = full(ALLOCATING, "memory")
    assert {c.name: c.values[0] for c in memory.columns} == {
        "forward_used_bytes": 6 * MB,
        "retained_bytes": 4 * MB,
        "backward_used_bytes": 10 * MB,
        "recompute_used_bytes": MB,
        "optimizer_used_bytes": 0,
        "data_used_bytes": 0,
        "communication_used_bytes": 0,
        "peak_bytes": 9 * MB,
        "acquired_bytes": 22 * MB,
    }
    assert "(profiler overhead)" not in memory.names


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


def test_what_a_tip_says_a_table_says_too() -> None:
    profile = sample("char_lm_functions")
    tip = re.search(r"for ([\d.]+) % more time", profile.report().replace("\n", " "))
    assert tip
    longer = values(full(profile, "checkpointing"), "extra_share")
    assert 100 * longer["CharLM.blocks.*: 4 Block"] == pytest.approx(
        float(tip[1]), abs=0.05
    )


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
