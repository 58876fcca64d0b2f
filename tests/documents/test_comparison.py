"""The document of a comparison: which rows come first, and what is said of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.build import MS, Cells, profile_of, timed
from tests.documents.found import block, column, table_in
from torchprof_hooks import Profile
from torchprof_hooks.documents.build.compare import comparison_document
from torchprof_hooks.documents.document import Answers, Document
from torchprof_hooks.documents.render.text import text_of
from torchprof_hooks.profiles.compare import compare
from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.step_times import Bucket, StepTimes
from torchprof_hooks.profiles.totals import Totals


def steady(ms: float) -> Totals:
    """30 calls which take nearly the same time."""
    return timed(*(round(ms * MS) + n for n in range(30)))


def net(**layers_ms: float) -> Profile:
    """30 calls of each layer."""
    cells: Cells = {(name, "forward"): steady(ms) for name, ms in layers_ms.items()}
    return profile_of(cells, dict.fromkeys(layers_ms, "Linear"), steps=30)


#: Rows that stay as they are: they tell the machine's speed.
SAME = {"d": 2, "e": 3, "f": 4, "g": 5}
OLD = [net(a=1, b=10, c=5, gone=1, **SAME)] * 3
NEW = [net(a=2, b=12, c=4, added=1, **SAME)] * 3


def compared(new: Sequence[Profile], max_rows: int | None = None) -> Document:
    """The old runs with others."""
    return comparison_document(compare(OLD, new), max_rows=max_rows)


def test_slower_rows_come_first_the_largest_difference_before_others() -> None:
    table = table_in(compared(NEW), "rows")
    assert table.labels == ["b", "a", "c", *"gfed"]
    assert column(table, "verdict") == ["slower", "slower", "faster", *[""] * 4]
    assert table.tones == ["slower1", "slower2", "faster1", *["same"] * 4]
    shares = column(table, "relative_change")
    assert shares == pytest.approx([0.2, 1.0, -0.2, *[0.0] * 4], abs=1e-3)


def test_what_is_slower_is_shown_in_any_case() -> None:
    document = compared(NEW, max_rows=1)
    assert table_in(document, "rows").most == 2
    assert "... 5 more rows, not slower" in text_of(document)


def test_answers_count_rows_and_name_the_largest_change() -> None:
    slower, faster, machine = block(compared(NEW), Answers).answers
    assert (slower.answer, faster.answer) == ("2 of 7 rows", "1 of 7 rows")
    found = slower.numbers
    assert (found["rows"], found["row"], found["phase"]) == (2, "b", "forward")
    assert found["change_ns"] == pytest.approx(2 * MS, abs=100)
    assert found["relative_change"] == pytest.approx(0.2, abs=1e-3)
    assert faster.numbers["row"] == "c"
    assert faster.numbers["relative_change"] == pytest.approx(-0.2, abs=1e-3)
    assert machine.answer == "+0.0 %, taken out of the times now"
    assert "all 3 new runs took longer than all 3 old ones, by chance 1 in 20" in (
        slower.evidence
    )


def nested(inner_ms: float, other_ms: float, own_ms: float = 1) -> list[Profile]:
    cells: Cells = {
        ("Net", "forward"): replace(
            steady(inner_ms + other_ms + 14 + own_ms), self_ns=MS
        ),
        ("Net > Net.fc", "forward"): steady(inner_ms),
        ("Net > Net.other", "forward"): steady(other_ms),
    }
    names = {"Net": "Net", "Net.fc": "Linear", "Net.other": "Linear"}
    for name, ms in SAME.items():
        cells[f"Net > Net.{name}", "forward"] = steady(ms)
        names[f"Net.{name}"] = "Linear"
    return [profile_of(cells, names, steps=30)] * 2


@pytest.mark.parametrize(
    ("new", "row"), [(nested(9, 2.01), "Net.fc"), (nested(5.5, 3.5, 3), "Net")]
)
def test_the_answer_is_the_innermost_row_with_most_of_the_change(
    new: list[Profile], row: str
) -> None:
    slower = block(comparison_document(compare(nested(4, 2), new)), Answers).answers[0]
    assert slower.numbers["row"] == row


def test_what_is_not_known_is_said_first() -> None:
    single = compared(NEW[:1])
    [warning] = block(single, Answers).warnings
    assert "One run on a side: what follows may be chance" in warning
    assert "compare --run" in warning
    table = table_in(single, "rows")
    assert set(column(table, "verdict")) <= {"slower?", "faster?", ""}
    few = [net(a=1, b=1)] * 2
    assert "too few modules" in text_of(comparison_document(compare(few, few)))


def test_a_tree_of_modules_has_the_largest_change_of_each() -> None:
    def backwards(forward_ms: float, backward_ms: float) -> list[Profile]:
        cells: Cells = {
            ("Net", "forward"): steady(1),
            ("Net > Net.fc", "forward"): steady(forward_ms),
            ("Net > Net.fc", "backward"): steady(backward_ms),
            **{(name, "forward"): steady(ms) for name, ms in SAME.items()},
        }
        names = dict.fromkeys(SAME, "Linear")
        made = profile_of(cells, {"Net": "Net", "Net.fc": "FC", **names}, steps=30)
        return [made] * 2

    found = compare(backwards(10, 5), backwards(11, 3))
    document = comparison_document(found)
    table = table_in(document, "tree")
    assert (table.names[:2], table.depths[:2]) == (["Net", "Net.fc"], [0, 1])
    assert table.tones[:2] == ["same", "faster2"]
    assert column(table, "phase")[:2] == [None, "backward"]
    assert column(table, "verdict")[:2] == [None, "faster"]
    assert "What changed" not in text_of(document)


def test_times_before_and_now_differ_by_the_change() -> None:
    """Also where the machine was slower by 30 % in all later runs."""
    news = [net(a=2.6, b=13, c=6.5, **{k: 1.3 * ms for k, ms in SAME.items()})] * 3
    table = table_in(compared(news), "rows")
    old, new, change = (
        column(table, f"{name}_ns") for name in ("old", "new", "change")
    )
    assert [b - a for a, b in zip(old, new, strict=True)] == pytest.approx(
        change, abs=1
    )
    assert dict(zip(table.labels, new, strict=True))["b"] == pytest.approx(
        10 * MS, 0.01
    )


@pytest.mark.parametrize(
    ("evaluations", "of_what"), [(0, "a step"), (3, "a step with evaluation")]
)
def test_what_is_inside_of_another_row_is_not_added_twice(
    evaluations: int, of_what: str
) -> None:
    def run(inner_ms: float) -> list[Profile]:
        names = {"Net": "Net", "Net.fc": "FC", **dict.fromkeys(SAME, "Linear")}
        outer = "(backward outside modules)"
        cells: Cells = {
            **{(name, "forward"): steady(ms) for name, ms in SAME.items()},
            ("Net", "backward"): replace(steady(inner_ms + 1), self_ns=30 * MS),
            ("Net > Net.fc", "backward"): steady(inner_ms),
            (outer, "backward"): replace(steady(inner_ms + 2), self_ns=30 * MS),
        }
        buckets = [Bucket(n, 1, round((20 + inner_ms) * MS) + n) for n in range(30)]
        times = StepTimes(later=tuple(buckets), evaluations=evaluations)
        return [profile_of(cells, names, steps=30, step_times=times)] * 2

    slower = block(comparison_document(compare(run(4), run(8))), Answers).answers[1]
    assert slower.answer == f"perhaps 2 of 7 rows, +4.00ms {of_what}"
    assert slower.numbers["row"] == "Net.fc"


@pytest.mark.parametrize(
    ("by", "said"), [("module", "compare by class"), ("call", "compare by function")]
)
def test_where_names_differ_it_says_by_what_to_compare(by: Grouping, said: str) -> None:
    def model(name: str, size: int) -> Profile:
        cells: Cells = {
            ("Net", "forward"): timed(5, 5),
            (f"Net > Net.{name}", "forward"): timed(300, 300),
            (f"Net > Net.{name} > linear({size}x4)", "forward"): timed(900, 900),
        }
        return profile_of(cells, {"Net": "Net", f"Net.{name}": "Linear"})

    old, new = model("fc", 8), model("head", 16)
    with pytest.raises(ValueError, match=said):
        compare(old, new, by)
    instead: Grouping = "class" if by == "module" else "function"
    document = comparison_document(compare(old, new, instead))
    assert "Slower: none of" in text_of(document)
