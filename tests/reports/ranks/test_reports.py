"""Ranks as text, JSON and CSV, and by the command."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from tests.ranks_of import BEGAN, SECOND, USUAL, as_rank, of_rank, profile_of, ranks_of
from torchprof_hooks import load_ranks
from torchprof_hooks.profiles.ranks.rank import Waits
from torchprof_hooks.profiles.ranks.ranks import run_of
from torchprof_hooks.program.file_tools import main
from torchprof_hooks.reports.ranks.export import ranks_csv, ranks_json

SLOW = {**USUAL, ("Net > Net.head", "forward"): 35.0}

REPORT = """\
Rank 2 is slow: the others wait 30.00ms for it in each step of 81.00ms (37.0 %).
It spends that in Net.head, forward: 35.00ms a step, the others 5.00ms.
Up to 4.05ms may be chance: steps differ.

4 of 4 ranks of train.py on node0; a step on average:
rank  steps     step  forward  backward  waiting    data  optimizer   other
0        20  81.00ms  16.00ms   30.00ms  31.00ms  1.00ms     2.00ms  1.00ms
1        20  81.00ms  16.00ms   30.00ms  31.00ms  1.00ms     2.00ms  1.00ms
2        20  81.00ms  46.00ms   30.00ms   1.00ms  1.00ms     2.00ms  1.00ms  <- slow
3        20  81.00ms  16.00ms   30.00ms  31.00ms  1.00ms     2.00ms  1.00ms

Where ranks differ: own time in a step; skew: the worst above the median
row         phase   least  median     most  worst rank     skew
Net.head  forward  5.00ms  5.00ms  35.00ms           2  30.00ms"""

EVEN = """\
Even: no rank waits for another beyond noise (2.55ms in a step of 51.00ms).
Each spends about 1.00ms (2.0 %) in communication: what that takes, or waiting for ranks
  that are slow in turns.

2 of 2 ranks of train.py on node0; a step on average:"""


def test_a_slow_rank() -> None:
    ranks = ranks_of([USUAL, USUAL, SLOW, USUAL])
    assert str(ranks) == ranks.report() == REPORT


def test_long_commands_are_cut() -> None:
    """Ray's workers have 900 characters of arguments."""
    command = "worker.py " + "--address=192.0.2.2 " * 40
    profile = profile_of(USUAL, [1.0], of_rank(0, 1, command=command))
    report = run_of([as_rank(profile)]).report()
    assert "1 of 1 rank of worker.py --address=192.0.2.2 " in report
    assert max(map(len, report.splitlines())) <= 120


def test_nobody_slow() -> None:
    assert ranks_of([USUAL, USUAL]).report(width=88).startswith(EVEN)


@pytest.mark.parametrize(
    ("work", "sentence"),
    [
        (
            {**USUAL, ("(data loading)", "data"): 31.0},
            "It spends that in data loading: 31.00ms a step, the others 1.00ms.",
        ),
        (
            {**USUAL, ("(outside modules)", "outside"): 31.0},
            "It spends that in the program's own code, outside of modules: 31.00ms a "
            "step, the others 1.00ms.",
        ),
        (
            {key: 2 * ms if "Net" in key[0] else ms for key, ms in USUAL.items()},
            "It is slower in all of Net, forward and backward: 92.00ms a step, the "
            "others 46.00ms.",
        ),
        (
            {key: ms + 8 * ("Net" not in key[0]) for key, ms in USUAL.items()},
            "No row explains most of that: it is slower in many, or does more in "
            "communication.",
        ),
    ],
    ids=["data", "own code", "batch", "many"],
)
def test_where_it_is_slow(work: dict[tuple[str, str], float], sentence: str) -> None:
    report = ranks_of([work, USUAL, USUAL]).report()  # type: ignore[list-item]
    assert sentence in report.splitlines()


def test_ranks_that_are_slow_alike() -> None:
    report = ranks_of([SLOW, SLOW, SLOW, SLOW] + [USUAL] * 5).report()
    assert report.startswith(
        "Rank 0 is slow (and so are ranks 1 to 3): the others wait"
    )
    assert report.count("<- slow") == 4


def test_many_ranks_have_two_ends() -> None:
    report = ranks_of([USUAL] * 99 + [SLOW]).report()
    assert "Rank 99 is slow" in report
    assert "... 84 more ranks, which wait neither least nor most" in report
    assert report.count("<- slow") == 1


def test_no_communication() -> None:
    ranks = ranks_of([USUAL, SLOW])
    alone = tuple(replace(rank, waits=Waits(0.0, inf)) for rank in ranks.ranks)
    ranks = replace(ranks, ranks=alone)
    assert ranks.report().startswith("No rank was seen to communicate: nothing says")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, work in enumerate((USUAL, USUAL, SLOW, USUAL)):
        provenance = of_rank(number, 6)
        wait = 31.0 if work is USUAL else 1.0
        if number == 3:
            behind = BEGAN + 10 * SECOND
            provenance = provenance._replace(written_ns=behind, has_ended=False)
        profile_of(work, [wait], provenance).save(tmp_path / f"{number}.json")
    return tmp_path


def test_missing_and_stale_ranks_come_first(folder: Path) -> None:
    (folder / "other.json").write_text("[]")
    lines = load_ranks(folder).report().splitlines()
    assert lines[:3] == [
        "MISSING: there is no file of ranks 4, 5.",
        "STALE: rank 3 wrote its file last 90.00sec before the newest, after 20 steps.",
        "Rank 2 is slow: the others wait 30.00ms for it in each step of 81.00ms "
        "(37.0 %).",
    ]
    assert lines[-1] == "left out: other.json is not a profile of torchprof_hooks"


def test_json(folder: Path) -> None:
    ranks = load_ranks(folder)
    found = json.loads(ranks_json(ranks))
    assert list(found) == [
        *("world_size", "ranks", "missing", "stale", "verdict", "rows"),
        "collectives",
    ]
    assert (found["world_size"], found["missing"]) == (6, [4, 5])
    assert found["stale"] == [
        {"rank": 3, "age_ns": 90 * SECOND, "steps": 20, "has_ended": False}
    ]
    assert found["verdict"] == {
        "rank": 2,
        "row": "Net.head",
        "phase": "forward",
        "lost_ns_per_step": 30_000_000,
        "text": " ".join(REPORT.splitlines()[:3]),
    }
    assert found["rows"][0] == {
        "name": "Net.head",
        "kind": "module",
        "phase": "forward",
        "least_ns": 5_000_000,
        "median_ns": 5_000_000,
        "most_ns": 35_000_000,
        "worst_rank": 2,
        "skew_ns": 30_000_000,
    }
    for rank in found["ranks"]:
        assert sum(rank["phases"].values()) == rank["step_ns"] == 81_000_000
        assert rank["host"] == "node0"


def test_csv(folder: Path) -> None:
    ranks = load_ranks(folder)
    rows = list(csv.DictReader(io.StringIO(ranks_csv(ranks, "class"))))
    assert rows[0]["name"] == "Linear"
    assert (rows[0]["worst_rank"], rows[0]["skew_ns"]) == ("2", "30000000")
    assert len(rows) == len(ranks.rows("class"))
    assert len(ranks_csv(ranks, max_rows=2).splitlines()) == 3


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = load_ranks(folder)
    assert main(["ranks", str(folder)]) == 0
    assert capsys.readouterr().out == ranks.report(width=80) + "\n"
    (folder / "other.json").write_text("[]")
    assert main(["ranks", str(folder), "--format", "json", "--by", "class"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads(ranks_json(ranks, "class"))
    assert printed.err == (
        "torchprof_hooks: left out: other.json is not a profile of torchprof_hooks\n"
    )
    output = folder / "out.csv"
    options = ["--format", "csv", "--max-rows", "1", "-o", str(output)]
    assert main(["ranks", str(folder), *options]) == 0
    assert output.read_text() == ranks_csv(ranks, max_rows=1) + "\n"


@pytest.mark.parametrize("name", ["empty", "missing", "file"])
def test_nothing_to_compare(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    assert main(["ranks", str(tmp_path / name)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("torchprof_hooks: ")
    assert printed.err.count("\n") == 1
