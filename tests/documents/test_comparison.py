"""The document of a comparison: which rows come first, and what is said of others."""

from __future__ import annotations

import json

import pytest

from tests.documents.found import block, column, table_in
from tests.helpers import hand_built, timed
from torchprof_hooks import Profile
from torchprof_hooks.documents.build.compare import comparison_document
from torchprof_hooks.documents.document import Answers, Document, Facts
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


def compared(new: Profile, max_rows: int | None = None) -> Document:
    """The old one with another."""
    return comparison_document(compare(OLD, new), max_rows=max_rows)


def test_slower_rows_come_first_the_largest_difference_before_others() -> None:
    table = table_in(compared(NEW), "rows")
    assert table.labels == ["b", "a", "c", "d"]
    assert column(table, "verdict") == ["slower", "slower", "faster", ""]
    assert table.tones == ["slower1", "slower2", "faster1", "same"]
    shares = column(table, "relative_change")
    assert shares == pytest.approx([0.2, 1.0, -0.2, 0.0], abs=1e-3)


def test_what_is_slower_is_shown_in_any_case() -> None:
    document = compared(NEW, max_rows=1)
    assert table_in(document, "rows").most == 2
    assert "... 2 more rows, not slower" in text_of(document)


def test_what_was_called_in_one_of_them_is_named() -> None:
    document = compared(NEW)
    said = ["only before: gone (forward)", "only now: added (forward)"]
    assert block(document, Facts, "compared").lines[:2] == said
    assert document.numbers["gone"] == [["gone", "forward"]]
    many = net(**{f"layer{n}": 1.0 for n in range(9)})
    assert "layer3 (forward), ... 5 more" in text_of(compared(many, max_rows=4))


def test_answers_count_rows_and_name_the_largest_change() -> None:
    slower, faster = block(compared(NEW), Answers).answers
    assert (slower.answer, faster.answer) == ("2 of 4 rows", "1 of 4 rows")
    found = slower.numbers
    assert (found["rows"], found["row"], found["phase"]) == (2, "b", "forward")
    assert found["change_ns"] == pytest.approx(2 * MS, abs=100)
    assert found["relative_change"] == pytest.approx(0.2, abs=1e-3)
    assert faster.numbers["row"] == "c"
    assert faster.numbers["relative_change"] == pytest.approx(-0.2, abs=1e-3)


def test_answers_where_nothing_changed_and_where_nothing_is_the_same() -> None:
    assert "nothing to compare" in text_of(compared(net(other=1)))
    assert "none of 5 rows" in text_of(compared(OLD))
    assert {b.name for b in compared(Profile()).blocks}.isdisjoint({"rows", "tree"})


@pytest.mark.parametrize("by", ["module", "class"])
def test_a_tree_of_modules_has_the_largest_change_of_each(by: str) -> None:
    def nested(forward_ms: float, backward_ms: float) -> Profile:
        cells: dict[tuple[str, Phase], Totals] = {
            ("Net", "forward"): steady(1),
            ("Net > Net.fc", "forward"): steady(forward_ms),
            ("Net > Net.fc", "backward"): steady(backward_ms),
        }
        return hand_built(cells, {"Net": "Net", "Net.fc": "Linear"}, steps=30)

    document = comparison_document(compare(nested(10, 5), nested(11, 3), by))  # type: ignore[arg-type]
    table = table_in(document, "tree")
    assert (table.names, table.depths) == (["Net", "Net.fc"], [0, 1])
    assert table.tones == ["same", "faster2"]
    assert column(table, "phase") == [None, "backward"]
    assert column(table, "verdict") == [None, "faster"]
    assert "What changed" not in text_of(document)


def test_in_the_tree_what_was_added_is_new() -> None:
    tree = table_in(compared(NEW), "tree")
    assert dict(zip(tree.names, tree.tones, strict=True))["added"] == "new"


def test_a_single_call_has_no_spread_anybody_knows() -> None:
    once = hand_built({("a", "forward"): timed(MS)}, {"a": "Linear"})
    content = json.loads(json_of(comparison_document(compare(once, NEW))))
    [row] = content["tables"]["rows"]["rows"]
    assert row["noise_ns"] is None
    assert row["old_ns"] == MS
