"""What a page and a program get: all rows with all numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.build import Cells, ms, profile_of
from tests.documents.found import page_document
from tests.documents.runs import (
    LOOP,
)
from torchprof_hooks.documents.build import page_tables
from torchprof_hooks.documents.build.blocks import BLOCKS, Level
from torchprof_hooks.documents.build.layers import heat
from torchprof_hooks.documents.document import Table
from torchprof_hooks.documents.render.html import page_of
from torchprof_hooks.documents.words import HEATS
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.data import ProfileData


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


def test_functions_are_in_a_tree_and_tables_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = tables(LOOP)
    assert {"tree.functions", "rows.function", "rows.call"} < {*found}
    assert "linear(8x4, 4x4)" in found["tree.functions"].labels
    assert "LM.blocks.*.mlp: linear(8x4, 4x4)" in found["rows.call"].labels
    assert "rows.function" not in tables(
        profile_of({("N", "forward"): ms(1)}, {"N": "N"})
    )
    monkeypatch.setattr(page_tables, "_LARGEST_TREE", 3)
    assert "tree.functions" not in tables(LOOP)


def test_layers_of_a_kind_are_hot_together() -> None:
    cells: Cells = {(f"Net > Net.{n}", "forward"): ms(4) for n in range(5)}
    cells["Net > Net.head", "forward"] = ms(80)
    names = {f"Net.{n}": "Linear" for n in range(5)}
    found = tree(profile_of(cells, {"Net": "Net", **names, "Net.head": "Head"}))
    assert list(found.tones) == ["heat0", *["heat4"] * 5, "heat5"]
    assert [heat(share) for share in (0, *HEATS)] == [f"heat{n}" for n in range(6)]


def test_the_full_text_and_the_page_have_the_same() -> None:
    """But for the layers: the page has all modules in a picture."""

    def of(level: Level) -> set[str]:
        return {entry.name for entry in BLOCKS if level in entry.levels}

    assert of("full") - {"layers"} == of("page")
    assert of("json") <= of("full")
    for entry in BLOCKS:
        assert entry.levels


def test_an_empty_profile_says_so() -> None:
    document = page_document(Profile())
    assert [block.name for block in document.blocks] == ["nothing", "measuring"]
    assert "<h1>Profile</h1>" in page_of(document)
