"""What a page and a program get: all rows with all numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.documents.made import MS, made, ms
from tests.documents.runs import (
    ALLOCATING,
    BUSY,
    COUNTED,
    HOLDING,
    LOOP,
    MB,
    RUN,
    START,
)
from torchprof_hooks.documents.build import page
from torchprof_hooks.documents.build.layers import heat
from torchprof_hooks.documents.build.page import page_document
from torchprof_hooks.documents.document import Answers, Table
from torchprof_hooks.documents.render.html import page_of
from torchprof_hooks.documents.words import HEATS
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.step_history import PhaseOfStep, SlowStep, StepHistory
from torchprof_hooks.profiles.step_times import Bucket, StepTimes
from torchprof_hooks.profiles.totals import Totals


def tables(profile: ProfileData) -> Mapping[str, Table]:
    blocks = page_document(profile).blocks
    return {block.name: block for block in blocks if isinstance(block, Table)}


def tree(profile: ProfileData) -> Table:
    return tables(profile)["tree.modules"]


def column(table: Table, name: str) -> list[Any]:
    return next(
        (list(c.values) for c in table.columns if name in (c.name, c.title)),
        [0] * len(table.labels),
    )


PROFILES = [RUN, LOOP, COUNTED, ALLOCATING, BUSY]


@pytest.mark.parametrize("profile", PROFILES)
def test_own_times_add_up_in_each_table(profile: Profile) -> None:
    shown = page_document(profile).numbers["shown_ns"]
    for name, table in tables(profile).items():
        if name.startswith(("tree.modules", "rows.")) and name != "rows.call":
            own = column(table, "self_ns")
            assert sum(own) == shown
            assert sum(table.shares) == pytest.approx(1)
            phases = ("forward", "backward", "recompute", "other")
            details = [column(table, f"{phase}_self_ns") for phase in phases]
            assert list(map(sum, zip(*details, strict=True))) == own


@pytest.mark.parametrize("profile", PROFILES)
def test_the_tree_is_that_of_the_profile(profile: Profile) -> None:
    shown = profile.loop if len(profile.parts) > 1 else profile
    found = tree(profile)
    nodes = list(shown.tree().walk())[1:]
    assert list(found.names) == [node.name for _, node in nodes]
    assert list(found.depths) == [depth - 1 for depth, _ in nodes]
    assert column(found, "cumulative_ns") == [node.cumulative_ns for _, node in nodes]
    assert found.drawing == "tree"


def test_retained_bytes_are_those_of_a_forward_call() -> None:
    found = {c.name: c.values[0] for c in tree(ALLOCATING).columns}
    retained = {name: bytes_ for name, bytes_ in found.items() if "retained" in name}
    assert retained == {"forward_retained_bytes": 4 * 1024**2}


def test_functions_are_in_a_tree_and_tables_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = tables(LOOP)
    assert {"tree.functions", "rows.function", "rows.call"} < {*found}
    assert "linear(8x4, 4x4)" in found["tree.functions"].labels
    assert "LM.blocks.*.mlp: linear(8x4, 4x4)" in found["rows.call"].labels
    assert "rows.function" not in tables(made({("N", "forward"): ms(1)}, {"N": "N"}))
    monkeypatch.setattr(page, "_LARGEST_TREE", 3)
    assert "tree.functions" not in tables(LOOP)


def test_layers_of_a_kind_are_hot_together() -> None:
    cells: dict[tuple[str, Phase], Totals] = {
        (f"Net > Net.{n}", "forward"): ms(4) for n in range(5)
    }
    cells["Net > Net.head", "forward"] = ms(80)
    names = {f"Net.{n}": "Linear" for n in range(5)}
    found = tree(made(cells, {"Net": "Net", **names, "Net.head": "Head"}))
    assert list(found.tones) == ["heat0", *["heat4"] * 5, "heat5"]
    assert [heat(share) for share in (0, *HEATS)] == [f"heat{n}" for n in range(6)]


def test_heat_is_by_the_clock_of_a_busy_device() -> None:
    found = tree(BUSY)
    tones = dict(zip(found.names, found.tones, strict=True))
    assert (tones["Net.large"], tones["Net"]) == ("heat5", "heat0")
    assert tones["(outside modules)"] == "heat0"


HISTORY = StepHistory(2, (1, 2, 7), (10 * MS, 40 * MS, 70 * MS), (10 * MS, 30 * MS, MS))
LATER = (Bucket(1, 9, 90 * MS), Bucket(2, 1, 30 * MS))


def test_steps_over_time() -> None:
    """One of them is slow."""
    slow = SlowStep(4, 30 * MS, 10 * MS, (PhaseOfStep("data", 22 * MS, 2 * MS),))
    run = LOOP.with_parts(lambda p: replace(p, step_times=StepTimes(1, MS, LATER)))
    found = tables(replace(run, step_history=replace(HISTORY, slowest=(slow,))))
    steps = found["steps"]
    assert steps.labels == ["step 2", "steps 3 to 4", "steps 5 to 11"]
    assert column(steps, "steps") == [1, 2, 7]
    assert column(steps, "mean_ns") == [10 * MS, 20 * MS, 10 * MS]
    assert column(steps, "longest_ns") == [10 * MS, 30 * MS, MS]
    text = "step 4: 30.00ms, usual 10.00ms: data loading +20.00ms"
    assert column(steps, "slow") == ["", text, ""]
    assert list(steps.tones) == ["", "slow", ""]
    assert "red" in steps.notes[0]
    assert "dark" in steps.notes[1]
    [row] = found["slow_steps"].labels
    assert row == "step 4"
    assert column(found["slow_steps"], "data_more_ns") == [20 * MS]


def test_steps_that_are_all_alike_are_not_marked() -> None:
    run = LOOP.with_parts(lambda p: replace(p, step_times=StepTimes(1, MS, LATER[:1])))
    found = tables(
        replace(run, step_history=replace(HISTORY, longest_ns=(10 * MS,) * 3))
    )
    assert not any(found["steps"].tones)
    assert "slow_steps" not in found
    assert "steps" not in tables(START)  # there is one


def test_all_of_memory_is_in_one_section() -> None:
    blocks = page_document(HOLDING).blocks
    inside = [block for block in blocks if getattr(block, "section", "") == "Memory"]
    assert [block.name for block in inside] == [
        *("memory", "memory_of_step", "memory_tree", "memory_at_peak"),
        "checkpointing",
    ]
    first = blocks.index(inside[0])
    assert list(blocks[first : first + len(inside)]) == inside
    sections = {getattr(b, "section", "") for b in page_document(ALLOCATING).blocks}
    assert sections == {"", "Own time, the most first"}


def test_the_course_of_a_step_has_the_kinds_that_are_there() -> None:
    found = tables(HOLDING)["memory_of_step"]
    assert found.labels[1:3] == ["Net.blocks.0: linear(8x4)", "Net.blocks.1"]
    assert [c.name for c in found.columns] == [
        *("since_ns", "phase", "activation_bytes", "parameter_bytes")
    ]
    assert column(found, "since_ns") == [0, 10 * MS, 20 * MS, 40 * MS]
    assert column(found, "activation_bytes") == [0, 0, 8 * MB, 0]
    assert column(found, "phase")[3] == "optimizers"


def test_the_tree_of_memory_adds_up_to_the_peak() -> None:
    found = tables(HOLDING)["memory_tree"]
    own, total = column(found, "self_bytes"), column(found, "bytes")
    rows = [*zip(found.names, found.labels, own, total, strict=True)]
    assert rows == [
        ("Net", "Net", 0, 8 * MB),
        ("Net.blocks", "blocks", 0, 8 * MB),
        ("Net.blocks.1", "1: Block", MB, 4 * MB),
        ("Net.blocks.1: linear(8x4)", "linear(8x4)", 3 * MB, 3 * MB),
        ("Net.blocks.0", "0: Block", MB, 4 * MB),
        ("Net.blocks.0: linear(8x4)", "linear(8x4)", 3 * MB, 3 * MB),
        ("(optimizer) SGD", "(optimizer) SGD", 2 * MB, 2 * MB),
    ]
    assert sum(own) == 10 * MB
    assert column(found, "activation_bytes") == [n * MB for n in (5, 5, 2, 2, 3, 3, 0)]
    assert list(found.depths) == [0, 1, 2, 3, 2, 3, 0]


def test_what_to_do_comes_first_and_not_that_there_is_more() -> None:
    names = [block.name for block in page_document(START).blocks]
    assert names[:4] == ["answers", "rates", "tips", "phases"]
    for profile in (HOLDING, RUN):
        first = page_document(profile).blocks[0]
        assert isinstance(first, Answers)
        assert not any("full" in answer.next_step for answer in first.answers)
        assert "full" in json.dumps(json.loads(profile.to_json())["answers"])


def test_an_empty_profile_says_so() -> None:
    document = page_document(Profile())
    assert [block.name for block in document.blocks] == ["nothing", "measuring"]
    assert "<h1>Profile</h1>" in page_of(document)
