"""Reports for programs: what is in the JSON and the CSV, and that the schema and the
page of the documentation say so. A golden document has a whole report."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.build import FUNCTIONS, STEP, ms, profile_of, timed
from tests.compared_runs import in_turns
from tests.golden import SAMPLES, sample
from torchprof_hooks import Profile
from torchprof_hooks.documents.build.compare import comparison_document
from torchprof_hooks.documents.build.ranks import ranks_document
from torchprof_hooks.documents.build.rows import rows_table
from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Column,
    Document,
    Table,
    Tip,
    Tips,
)
from torchprof_hooks.documents.render.csv import csv_of
from torchprof_hooks.documents.render.json import json_of
from torchprof_hooks.documents.report import to_json
from torchprof_hooks.files.ranks import read_run
from torchprof_hooks.profiles.compare import compare
from torchprof_hooks.profiles.names import GROUPINGS, Grouping

DOCS = SAMPLES.parent
PAGE = (DOCS / "json.md").read_text(encoding="utf-8")
SCHEMA = json.loads((DOCS / "report.schema.json").read_text(encoding="utf-8"))
NAMES: dict[Grouping, str] = {
    "module": "modules",
    "class": "classes",
    "function": "functions",
    "call": "calls",
}


def checked(text: str) -> Any:
    """A report, which is as the schema says."""
    found = json.loads(text)
    Draft202012Validator(SCHEMA).validate(found)
    return found


def report(profile: Profile, by: Grouping | None = None) -> Any:
    return checked(to_json(profile, by))


# All reports


def _comparison() -> str:
    found = compare(sample("char_lm"), sample("char_lm_functions"), "class")
    return json_of(comparison_document(found))


def _comparison_of_runs() -> str:
    return json_of(comparison_document(compare(*in_turns(0, 3, {7: 1.5}))))


REPORTS: dict[str, Callable[[], str]] = {
    **{
        path.stem: partial(lambda name: sample(name).to_json(), path.stem)
        for path in SAMPLES.glob("*.json")
    },
    "by call": lambda: to_json(sample("exit_report"), "call"),
    "comparison": _comparison,
    "comparison of runs": _comparison_of_runs,
    "ranks": lambda: json_of(ranks_document(read_run(SAMPLES / "ranks"))),
    "nothing": lambda: Profile().to_json(),
}


def names_in(content: Any) -> Iterator[str]:
    """What a program may look up."""
    yield from content
    yield from (*content["answers"], *content["numbers"], *content["tables"])
    for answer in content["answers"].values():
        yield from answer
    for by, found in content["tables"].items():
        if by in (*NAMES.values(), "rows", "files", "layers") and found["rows"]:
            yield from found["rows"][0]


@pytest.mark.parametrize("name", REPORTS)
def test_the_schema_and_the_page_describe_every_report(name: str) -> None:
    found = checked(REPORTS[name]())
    told = set(re.findall(r"`(\w+)`", PAGE)) | {"compiled_graphs"}
    # "with them `cumulative_used_bytes`, ..."; each phase of layers and of ranks.
    alike = re.compile(r"cumulative_\w+_bytes|(recompute|device)_ns|phase|kind")
    unknown = {*names_in(found)} - told
    assert {each for each in unknown if not alike.fullmatch(each)} == set()
    for by in {*NAMES.values()} & {*found["tables"]}:
        own_ns = sum(row["self_ns"] for row in found["tables"][by]["rows"])
        assert own_ns == found["numbers"]["shown_ns"]


# What is in them


@pytest.mark.parametrize("by", GROUPINGS)
def test_rows_are_those_of_the_profile(by: Grouping) -> None:
    tables = report(FUNCTIONS, by)["tables"]
    assert {*NAMES.values()} & {*tables} == {NAMES[by]}
    times: defaultdict[str, int] = defaultdict(int)
    for row in tables[NAMES[by]]["rows"]:
        assert row["calls"] or row["cumulative_ns"]  # phases without anything are not
        times[row["name"]] += row["cumulative_ns"]
    assert times == {row.name: row.cumulative_ns for row in FUNCTIONS.rows(by)}


def test_rows_that_are_there_if_nothing_else_is_asked_for() -> None:
    modules, functions = ({*report(each)["tables"]} for each in (STEP, FUNCTIONS))
    assert {*NAMES.values()} & modules == {"modules", "classes"}
    assert {*NAMES.values()} & functions == {"modules", "classes", "functions"}
    with pytest.raises(ValueError, match="by must be"):
        to_json(STEP, "layer")  # type: ignore[arg-type]


# The renderers


def test_numbers_are_raw_and_what_json_cannot_say_is_not_known() -> None:
    columns = [
        Column("time", "ns", [1.25, inf, nan], "time_ns"),
        Column("gone", "ns", [0, None, 0]),
        Column("kept", "count", [0, 0, 0], shows_zeros=True, is_detail=True),
        Column("", "text", ["", "\u2028\x00\ud800", None], "said"),
    ]
    found = Table("t", "T", "c", ["l", "m", "n"], columns, names=["a", "b", "c"])
    answer = Answer("a", "A", "yes", inf, nan, numbers={"x_ns": -inf})
    document = Document(
        "profile",
        "\u4e16",
        blocks=[Answers([answer], ["!"]), found, Tips([Tip("c", "r", "n")])],
        numbers={"x": inf, "y": [1]},
    )
    assert json_of(document).isascii()
    content = json.loads(json_of(document))
    assert content["tables"]["t"]["rows"] == [
        {"name": "a", "time_ns": 1.25, "kept": 0, "said": ""},
        {"name": "b", "time_ns": None, "kept": 0, "said": "\u2028\x00\ud800"},
        {"name": "c", "time_ns": None, "kept": 0, "said": None},
    ]
    assert content["answers"]["a"]["numbers"] == {"x_ns": None}
    assert (content["answers"]["a"]["share"], content["warnings"]) == (None, ["!"])
    assert content["numbers"] == {"x": None, "y": [1]}
    assert content["tips"] == [{"claim": "c", "remedy": "r", "rule": "n"}]


def test_a_whole_csv() -> None:
    cells = {("Net", "forward"): timed(10, 20), ("(outside modules)", "outside"): ms(0)}
    profile = profile_of(cells, {"Net": "MyNet"})
    assert csv_of(rows_table(profile, "module")).splitlines() == [
        "name,class_name,kind,module,compiled,phase,calls,self_ns,cumulative_ns,"
        "mean_ns,std_ns,min_ns,max_ns",
        "Net,MyNet,module,Net,False,forward,2,30,30,15.0,5.0,10,20",
        "(outside modules),,outside,,False,outside,1,0,0,0.0,0.0,0,0",
    ]


@pytest.mark.slow
def test_the_recipe_of_the_documentation(tmp_path: Path) -> None:
    text = (DOCS / "recipes.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("## A script that looks for the bottleneck")
    [code, *_] = re.findall(r"```python\n(.*?)```", rest, re.DOTALL)
    defined: dict[str, Any] = {}
    exec(code.partition("\nprof.")[0], defined)
    most, shares = defined["bottleneck"](
        str(SAMPLES / "char_lm.json"), "attention", "mlp"
    )
    assert most == "mlp"
    assert 0.3 < shares["attention"] < shares["mlp"]
    assert shares["mlp"] == pytest.approx(0.506, abs=0.001)
    sides = [str(tmp_path / side) for side in ("old", "new")]
    for side, runs in zip(sides, in_turns(0, 5, {7: 1.5}), strict=True):
        Path(side).mkdir()
        for number, run in enumerate(runs):
            run.save(f"{side}/{number}.json")
    is_slower, changes = defined["changes"](*sides)
    assert is_slower
    assert ("Net.7", "backward") in {change[:2] for change in changes}
    assert defined["changes"](sides[0], sides[0]) == (False, [])
