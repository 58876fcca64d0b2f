"""The tables of a full report, and what may be asked of reports."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.documents.found import block, column, table_in, values
from tests.documents.made import MS, made, ms, with_unmeasured
from tests.documents.runs import ALLOCATING, BUSY, COUNTED, KB, LOOP, MB, RUN, TRAINED
from tests.golden import sample
from torchprof_hooks.documents.build import facts, screen
from torchprof_hooks.documents.build.full import communication, full_tables
from torchprof_hooks.documents.build.tables import call_sites, grouped_table
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.documents.document import Facts, Table
from torchprof_hooks.documents.render.table import chosen_rows
from torchprof_hooks.documents.report import Layout, report
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.collectives import Collective
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.memory import MemorySummary, MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import GROUPINGS, Grouping, SortBy
from torchprof_hooks.profiles.peak import Peak


def full(profile: ProfileData, name: str, sort_by: SortBy | None = None) -> Table:
    return table_in(full_tables(profile, sort_by), name)


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
    assert tree.ranks[1] == tree.ranks[2]


def test_a_tree_is_sorted_inside_of_each_module() -> None:
    names = full(TRAINED, "modules", "backward").names
    assert names[:3] == ["Net", "Net.fc.1", "Net.fc.0"]
    assert full(TRAINED, "modules", "calls").names[0] == "Net"


@pytest.mark.parametrize(
    "sort_by", ["calls", "forward", "backward", "recompute", "device", "self", "total"]
)
def test_any_order_has_all_rows(sort_by: SortBy) -> None:
    for name in ("modules", "functions", "call_sites"):
        usual, other = full(TRAINED, name), full(TRAINED, name, sort_by)
        assert Counter(usual.labels) == Counter(other.labels)


def test_labels_leave_out_what_the_row_around_says_and_have_marks() -> None:
    fast = ModuleInfo("Fast", aliases=("Net#2.quick",), compiled=True)
    profile = made(
        {
            ("Net#2", "forward"): ms(1),
            ("Net#2 > Net#2.a.b", "forward"): ms(5),
            ("Net#2 > Net#2.a.b > Net.shared", "forward"): ms(3),
            ("Net#2 > Net#2.fast", "forward"): ms(3),
        },
        {"Net#2": "Net", "Net#2.a.b": "B", "Net.shared": "Linear", "Net#2.fast": fast},
    )
    tree = full(profile, "modules")
    assert tree.labels == [
        *("Net#2: Net", "a.b: B", "Net.shared: Linear"),
        "fast: Fast [compiled] [shared]",
    ]
    assert tree.notes == ["[shared] Net#2.fast is also Net#2.quick"]


def test_functions_and_call_sites() -> None:
    functions = full(TRAINED, "functions")
    assert values(functions, "self_ns") == {
        "linear": 147 * MS,
        "cross_entropy": 12 * MS,
        "relu": 6 * MS,
        "(modules, outside functions)": 6 * MS,
    }
    # The row of modules is there however little room there is.
    assert chosen_rows(functions, 2) == [0, 3]
    assert values(full(TRAINED, "call_sites"), "self_ns") == {
        "Net.fc.*: linear(8x4, 4x4, 4)": 147 * MS,
        "cross_entropy(8x4, 8)": 12 * MS,
        "Net: relu(8x4)": 6 * MS,
    }
    without = made({("Net", "forward"): ms(1)}, {"Net": "Net"})
    assert [block.name for block in full_tables(without, None)] == ["modules"]


def test_layers_of_a_kind_with_other_inputs_are_call_sites_of_their_own() -> None:
    sites = [(0, 4), (1, 4), (2, 8), (0, 5)]
    cells = {(f"Net.{n}.fc > linear({size})", "forward"): ms(1) for n, size in sites}
    profile = made(cells, {f"Net.{n}.fc": "Linear" for n in range(3)})  # type: ignore[arg-type]
    assert {row.name: row.calls for row in call_sites(profile)} == {
        "Net.*.fc: linear(4)": 2,
        "Net.2.fc: linear(8)": 1,
        "Net.0.fc: linear(5)": 1,
    }


@pytest.mark.parametrize("by", GROUPINGS)
def test_rows_in_a_table(by: Grouping) -> None:
    found = grouped_table(TRAINED, by, "self")
    own = column(found, "self_ns")
    assert sum(own) == TRAINED.wall_ns
    assert own == sorted(own, reverse=True)
    assert sum(found.shares) == pytest.approx(1)
    assert grouped_table(Profile(), by, "total").labels == []


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


def test_utilisation() -> None:
    known = replace(COUNTED, peak=Peak(240_000_000, "given"))
    flops = full(known, "flops")
    assert values(flops, "mfu")["Net"] == pytest.approx(9e6 / 0.08 / 240e6)
    assert values(flops, "hfu")["Net"] == pytest.approx(150 / 240)
    rates = block(screen.screen_document(view_of(known), ""), Facts, "rates").numbers
    assert rates["hfu"] == pytest.approx(12e6 / 0.1 / 240e6)
    exceeded = replace(COUNTED, peak=Peak(1_000_000, "given"))
    assert "exceeded" in full(exceeded, "flops").notes[0]
    none = made({("Net", "forward"): ms(1)}, {"Net": "Net"}, peak=Peak(1, "given"))
    for profile, text in ((exceeded, "unknown"), (none, "unknown"), (COUNTED, "")):
        assert facts.utilisation_text(profile).partition(":")[0][:7] == text


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


def test_bytes_of_functions_are_their_own() -> None:
    forward = MemoryTotals(20 * KB, 0, 20 * KB, 2048)
    backward = MemoryTotals(99 * KB, 0, 0, 3072)
    profile = made(
        {
            ("Net > linear(8x4)", "forward"): ms(20, 10, 0, forward),
            ("Net > linear(8x4)", "backward"): ms(70, 10, 0, backward),
        },
        {"Net": "Net"},
        memory=MemorySummary("cuda:0"),
    )
    for name in ("functions", "call_sites"):
        found = full(profile, name)
        assert column(found, "used_bytes")[0] == 2 * KB
        assert column(found, "peak_bytes")[0] == 3 * KB


def test_memory_that_could_not_be_measured() -> None:
    *_, last = full_tables(replace(RUN, memory=MemorySummary(unavailable="why")), None)
    assert isinstance(last, Facts)
    assert "why" in last.lines[0]


def test_communication() -> None:
    one = Collective("all_reduce", "", 2, 4, 4 * MB, 5, 20, 0)
    other = Collective("barrier", "dp", 4, 3, 0, 100, 0, 10)
    found = communication([one, other])
    assert found.labels == ["barrier (dp of 4)", "all_reduce (of 2)"]
    assert column(found, "call_bytes") == [None, MB]
    assert column(found, "gb_per_s")[1] is None


# All of it


def check_size(text: str, width: int = 120, lines: int = 40) -> None:
    assert len(text.splitlines()) <= lines
    assert max(map(len, text.splitlines())) <= width


def test_thousands_of_modules_are_a_screen() -> None:
    groups = [f"Net.{letter}{n}" for letter in "abcdefghij" for n in range(5)]
    names = {f"{group}.{n}": "Linear" for group in groups for n in range(40)}
    cells = {(f"Net > {name}", "forward"): ms(1, 2) for name in names}
    text = made(cells, {"Net": "Net", **names}).report()  # type: ignore[arg-type]
    check_size(text)
    assert "40 Linear" in text


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("profile", [RUN, TRAINED, COUNTED, ALLOCATING, BUSY])
def test_reports_keep_their_width(profile: Profile, width: int) -> None:
    check_size(profile.report(width=width), width)
    check_size(profile.report(full=True, width=max(width, 80)), max(width, 80), 999)


def test_a_screen_may_have_fewer_lines() -> None:
    text = report(RUN, Layout(), full=False, lines=25, more="--full")
    check_size(text, lines=25)
    assert "--full" in text.splitlines()[-1]
    assert text.splitlines()[:9] == RUN.report().splitlines()[:9]


def test_what_a_full_report_is_about_is_said_where_there_is_a_choice() -> None:
    assert "Modules of the whole run" in RUN.report(full=True)
    assert "whole run" not in LOOP.report(full=True)


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


@pytest.mark.parametrize("profile", [RUN, Profile()], ids=["a run", "nothing"])
@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"unit": "min"}, ValueError),
        ({"unit": 3}, TypeError),
        ({"width": 0}, ValueError),
        ({"width": "wide"}, TypeError),
        ({"max_rows": 0}, ValueError),
        ({"max_rows": True}, TypeError),
        ({"sort_by": "name"}, ValueError),
        ({"full": 1}, TypeError),
    ],
    ids=str,
)
def test_invalid_parameters_are_named(
    profile: Profile, given: dict[str, Any], error: type[Exception]
) -> None:
    (name,) = given
    with pytest.raises(error, match=rf"^{name} "):
        profile.report(**{"full": True, **given})
