"""The document of ranks: who is slow, what is shown of each, and where ranks differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.documents.found import block, table_in
from tests.ranks_of import (
    BEGAN,
    SECOND,
    USUAL,
    Work,
    of_rank,
    rank_profile,
    ranks_of,
)
from torchprof_hooks import load_ranks
from torchprof_hooks.documents.build.ranks import ranks_document
from torchprof_hooks.documents.document import Answer, Answers, Table
from torchprof_hooks.documents.render.csv import csv_of
from torchprof_hooks.documents.render.json import json_of
from torchprof_hooks.documents.render.text import text_of
from torchprof_hooks.profiles.ranks.ranks import RanksData
from torchprof_hooks.program.cli import main

SLOW: Work = {**USUAL, ("Net > Net.head", "forward"): 35.0}
RANKS = ranks_of([USUAL, USUAL, SLOW, USUAL])


def answer_of(ranks: RanksData) -> Answer:
    [found] = block(ranks_document(ranks), Answers).answers
    return found


def row_of(table: Table, row: int) -> dict[str, Any]:
    return {c.name or c.title: c.values[row] for c in table.columns}


def test_the_slow_rank_what_that_costs_and_where() -> None:
    found = answer_of(RANKS)
    assert found.numbers == {
        "rank": 2,
        "row": "Net.head",
        "phase": "forward",
        "spent_ns": 35_000_000,
        "others_spent_ns": 5_000_000,
        "lost_ns": 30_000_000,
        "noise_ns": 4_050_000,
        "waiting_ns": 31_000_000,
        "step_ns": 81_000_000,
    }
    assert found.share == pytest.approx(30 / 81)
    assert found.next_step.endswith("profile-rank2.json")


def test_what_is_exchanged_anyway_is_told_apart() -> None:
    """The others wait 31 ms, of which 30 are for the slow rank; then, 40 ms more."""
    ranks = ranks_of([SLOW, USUAL, USUAL])
    assert "which is not for this rank" not in answer_of(ranks).evidence
    exchanging = tuple(
        replace(
            rank,
            cells={
                key: ns + 40e6 * (key[1] == "waiting") for key, ns in rank.cells.items()
            },
            step_ns=rank.step_ns + 40e6,
        )
        for rank in ranks.ranks
    )
    evidence = answer_of(replace(ranks, ranks=exchanging)).evidence
    assert "wait 30.00ms for it in each step of 121.00ms" in evidence
    assert "another 41.00ms, which is not for this rank." in evidence


def test_nobody_is_blamed_where_all_are_alike_or_nothing_is_known() -> None:
    even, apart = ranks_of([USUAL, USUAL]), ranks_of([USUAL, SLOW])
    silent = tuple(
        replace(r, cells={k: ns for k, ns in r.cells.items() if k[1] != "waiting"})
        for r in apart.ranks
    )
    apart = replace(apart, ranks=silent)
    for found, said in ((even, "Even"), (apart, "communicate")):
        answer = answer_of(found)
        assert said in answer.answer
        assert (answer.numbers["rank"], answer.share, answer.next_step) == (
            *(None, None),
            "",
        )
    assert not any(table_in(ranks_document(apart), "ranks").tones[:1])


def test_where_chance_explains_it_nobody_can_tell() -> None:
    found = ranks_of([USUAL, SLOW, USUAL], 14)
    assert found.verdict.noise_ns > 30e6  # which it takes longer
    answer = answer_of(found)
    assert answer.answer == "Cannot tell"
    assert answer.evidence.startswith("Rank 1 has most to do, and makes others wait")
    assert (answer.numbers["rank"], answer.share, answer.next_step) == (None, None, "")


def test_a_step_of_each_rank_is_divided_into_phases() -> None:
    table = table_in(ranks_document(RANKS), "ranks")
    assert table.labels == ["0", "1", "2", "3"]
    rows = [row_of(table, place) for place in range(4)]
    for row in rows:
        phases = [row[name] for name in row if name not in ("steps", "step_ns")]
        assert sum(phases) == row["step_ns"] == 81_000_000
        assert row["steps"] == 20
        assert "recompute_ns" not in row  # nobody does
    assert rows[2]["forward_ns"] == 46_000_000
    assert rows[2]["waiting_ns"] == 1_000_000


def test_of_many_ranks_those_are_shown_that_wait_least_and_most() -> None:
    text = text_of(ranks_document(ranks_of([USUAL] * 99 + [SLOW])))
    assert "Rank 99 is slow" in text
    assert "... 84 more ranks" in text
    assert text.count("<- slow") == 1


def test_rows_in_which_ranks_differ_without_waiting() -> None:
    table = table_in(ranks_document(RANKS), "rows")
    assert table.labels == ["Net.head"]
    assert row_of(table, 0) == {
        "kind": "module",
        "phase": "forward",
        "least_ns": 5_000_000,
        "median_ns": 5_000_000,
        "most_ns": 35_000_000,
        "worst_rank": 2,
        "skew_ns": 30_000_000,
    }
    assert table_in(ranks_document(RANKS, "class"), "rows").labels == ["Linear"]
    assert "Where ranks differ" not in text_of(ranks_document(ranks_of([USUAL, USUAL])))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four of six ranks, of which the last one was left behind; and another file."""
    for number, work in enumerate((USUAL, USUAL, SLOW, USUAL)):
        provenance = of_rank(number, 6)
        if number == 3:
            behind = BEGAN + 10 * SECOND
            provenance = provenance._replace(written_ns=behind, has_ended=False)
        wait = 31.0 if work is USUAL else 1.0
        rank_profile(work, [wait], provenance).save(tmp_path / f"{number}.json")
    (tmp_path / "other.json").write_text("[]")
    return tmp_path


def test_missing_and_stale_ranks_come_first(folder: Path) -> None:
    document = ranks_document(load_ranks(folder))
    missing, stale = block(document, Answers).warnings
    assert missing.startswith("MISSING: ")
    assert "ranks 4, 5" in missing
    assert stale.startswith("STALE: rank 3 ")
    [answer] = block(document, Answers).answers
    assert answer.next_step == f"show --full {folder / '2.json'}"
    lines = text_of(document).splitlines()
    assert lines[1].startswith("MISSING")
    assert lines[-1].startswith("left out: other.json")
    assert document.numbers["world_size"] == 6
    assert document.numbers["missing"] == [4, 5]
    assert document.numbers["stale"] == [
        {"rank": 3, "age_ns": 90 * SECOND, "steps": 20, "has_ended": False}
    ]


Printed = pytest.CaptureFixture[str]


def test_the_command(
    folder: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ranks = load_ranks(folder)
    assert main(["ranks", str(folder)]) == 0
    assert capsys.readouterr().out == ranks.report(width=80) + "\n"
    assert main(["ranks", str(folder), "--format", "json", "--by", "class"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found == json.loads(json_of(ranks_document(ranks, "class")))
    assert printed.err.count("\n") == 1
    output = folder / "out.csv"
    assert main(["ranks", str(folder), "--format", "csv", "-o", str(output)]) == 0
    rows = table_in(ranks_document(ranks), "rows")
    assert output.read_text() == csv_of(rows) + "\n"
    assert rows.labels == ["Net.head"]


def test_ranks_have_the_same_page_and_report_for_programs_in_python(
    folder: Path, capsys: Printed, tmp_path: Path
) -> None:
    ranks, page = load_ranks(folder), tmp_path / "ranks.html"
    ranks.to_html(page)
    for kind, written in (("json", ranks.to_json()), ("html", page.read_text())):
        assert main(["ranks", str(folder), "--format", kind]) == 0
        assert capsys.readouterr().out == written + "\n"
    assert "Net.head" in ranks._repr_html_()


@pytest.mark.parametrize("name", ["empty", "missing", "file"])
def test_nothing_to_compare(name: str, tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    assert main(["ranks", str(tmp_path / name)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
