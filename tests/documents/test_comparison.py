"""The document of a comparison: which rows come first, and what is said of others."""

from __future__ import annotations

import json

import pytest

from tests.helpers import hand_built, timed
from torchprof_hooks import Profile
from torchprof_hooks.documents.build.compare import comparison_document
from torchprof_hooks.documents.document import Answers, Document, Facts, Table
from torchprof_hooks.documents.render.csv import csv_of
from torchprof_hooks.documents.render.json import json_of
from torchprof_hooks.documents.render.text import text_of
from torchprof_hooks.profiles.compare import compare
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.totals import Totals

MS = 10**6


def steady(ms: float) -> Totals:
    """30 calls which take nearly the same time."""
    return timed(*(round(ms * MS) + n for n in range(30)))


def net(**layers_ms: float) -> Profile:
    """30 calls of each layer."""
    cells: dict[tuple[str, Phase], Totals] = {
        (name, "forward"): steady(ms) for name, ms in layers_ms.items()
    }
    return hand_built(cells, dict.fromkeys(layers_ms, "Linear"), steps=30)


OLD = net(a=1, b=10, c=5, d=2, gone=1)
NEW = net(a=2, b=12, c=4, d=2, added=1)


def table_in(document: Document, name: str = "rows") -> Table:
    [found] = (
        block
        for block in document.blocks
        if isinstance(block, Table) and block.name == name
    )
    return found


def column(table: Table, name: str) -> list[object]:
    [found] = (c for c in table.columns if name in (c.name, c.title))
    return [*found.values]


def test_slower_rows_come_first_the_largest_difference_before_others() -> None:
    table = table_in(comparison_document(compare(OLD, NEW)))
    assert table.labels == ["b", "a", "c", "d"]
    assert column(table, "verdict") == ["slower", "slower", "faster", ""]
    assert table.tones == ["slower1", "slower2", "faster1", "same"]
    assert column(table, "relative_change") == [
        pytest.approx(share, abs=1e-3) for share in (0.2, 1.0, -0.2, 0.0)
    ]


def test_what_is_slower_is_shown_in_any_case() -> None:
    document = comparison_document(compare(OLD, NEW), max_rows=1)
    table = table_in(document)
    assert table.most == 2
    assert "... 2 more rows, not slower" in text_of(document)


def test_what_was_called_in_one_of_them_is_named() -> None:
    document = comparison_document(compare(OLD, NEW))
    [facts, *_] = (block for block in document.blocks if isinstance(block, Facts))
    assert facts.lines[:2] == [
        "only before: gone (forward)",
        "only now: added (forward)",
    ]
    assert document.numbers["gone"] == [["gone", "forward"]]
    many = net(**{f"layer{n}": 1.0 for n in range(9)})
    found = comparison_document(compare(OLD, many), max_rows=4)
    assert "layer3 (forward), ... 5 more" in text_of(found)


def test_answers_count_rows_and_name_the_largest_change() -> None:
    document = comparison_document(compare(OLD, NEW))
    [answers] = (block for block in document.blocks if isinstance(block, Answers))
    slower, faster = answers.answers
    assert (slower.answer, faster.answer) == ("2 of 4 rows", "1 of 4 rows")
    found = slower.numbers
    assert (found["rows"], found["row"], found["phase"]) == (2, "b", "forward")
    assert found["change_ns"] == pytest.approx(2 * MS, abs=100)
    assert found["relative_change"] == pytest.approx(0.2, abs=1e-3)
    assert faster.numbers["row"] == "c"
    assert faster.numbers["relative_change"] == pytest.approx(-0.2, abs=1e-3)


def test_answers_where_nothing_changed_and_where_nothing_is_the_same() -> None:
    nothing = comparison_document(compare(OLD, net(other=1)))
    assert "nothing to compare" in text_of(nothing)
    assert "none of 5 rows" in text_of(comparison_document(compare(OLD, OLD)))
    empty = comparison_document(compare(OLD, Profile()))
    assert [b.name for b in empty.blocks if isinstance(b, Table)] == []


def test_a_tree_of_modules_has_the_largest_change_of_each() -> None:
    def nested(inner_ms: float, backward_ms: float) -> Profile:
        times = {"forward": inner_ms, "backward": backward_ms}
        cells: dict[tuple[str, Phase], Totals] = {("Net", "forward"): steady(1)}
        for phase, ms in times.items():
            cells["Net > Net.fc", phase] = steady(ms)  # type: ignore[index]
        return hand_built(cells, {"Net": "Net", "Net.fc": "Linear"}, steps=30)

    old, new = nested(10, 5), nested(11, 3)
    for by in ("module", "class"):
        document = comparison_document(compare(old, new, by))
        table = table_in(document, "tree")
        assert (table.names, table.depths) == (["Net", "Net.fc"], [0, 1])
        assert table.tones == ["same", "faster2"]
        assert column(table, "phase") == [None, "backward"]
        assert column(table, "verdict") == [None, "faster"]
        assert "What changed" not in text_of(document)
    added = table_in(comparison_document(compare(OLD, NEW)), "tree")
    assert added.tones[list(added.names).index("added")] == "new"


def test_a_single_call_has_no_spread_anybody_knows() -> None:
    once = hand_built({("a", "forward"): timed(MS)}, {"a": "Linear"})
    document = comparison_document(compare(once, NEW))
    assert column(table_in(document), "noise_ns") == [None]
    assert (
        json.loads(json_of(document))["tables"]["rows"]["rows"][0]["noise_ns"] is None
    )


def test_programs_read_raw_numbers() -> None:
    document = comparison_document(compare(OLD, NEW))
    content = json.loads(json_of(document))
    assert content["answers"]["slower"]["numbers"]["row"] == "b"
    [first, *_] = content["tables"]["rows"]["rows"]
    assert first["old_ns"] == pytest.approx(10 * MS, abs=100)
    lines = csv_of(table_in(document)).splitlines()
    assert lines[0].startswith(
        "name,phase,old_ns,new_ns,change_ns,relative_change,noise_ns"
    )
    assert [line.partition(",")[0] for line in lines[1:]] == ["b", "a", "c", "d"]
