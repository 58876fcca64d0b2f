from __future__ import annotations

import csv
import io
import json
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import FUNCTIONS, STEP, hand_built, timed
from tests.profile_of import profile_of
from torchprof_hooks import Profile
from torchprof_hooks.documents.build.compare import comparison_document
from torchprof_hooks.documents.build.theano import program_text
from torchprof_hooks.documents.render.html import page_of
from torchprof_hooks.documents.report import page
from torchprof_hooks.profiles.compare import Comparison, compare
from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.program import Program
from torchprof_hooks.program.file_tools import main

FORMATS = ("text", "json", "csv", "speedscope", "collapsed")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., str]:
    """Saves a profile and says where."""

    def save(profile: Profile, name: str = "profile.json") -> str:
        profile.save(tmp_path / name)
        return str(tmp_path / name)

    return save


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that has to succeed, and returns what it prints."""

    def run(*argv: str, code: int = 0) -> str:
        assert main(argv) == code
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out

    return run


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that has to fail, and returns its one line."""

    def run(*argv: str) -> str:
        assert main(argv) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        [line] = printed.err.splitlines()
        return line.removeprefix("torchprof_hooks: ")

    return run


Save = Callable[..., str]
Output = Callable[..., str]


def slowed(factor: float = 1.0, noise: float = 0.02, seed: int = 0) -> Profile:
    """30 steps of a Net, of which one layer takes `factor` times as long."""
    rng = random.Random(seed)

    def calls(usual_ns: float) -> Sequence[int]:
        others = (rng.gauss(usual_ns, noise * usual_ns) for _ in range(29))
        return [round(10 * usual_ns), *(max(round(other), 0) for other in others)]

    return hand_built(
        {
            ("Net.slow", "forward"): timed(*calls(2e6 * factor)),
            ("Net.slow", "backward"): timed(*calls(4e6)),
            ("Net.other", "forward"): timed(*calls(3e6)),
        },
        {"Net.slow": "Linear", "Net.other": "Conv2d"},
        steps=30,
    )


def test_show_prints_the_report(saved: Save, output: Output) -> None:
    assert output("show", saved(FUNCTIONS)) == FUNCTIONS.report() + "\n"


def test_show_prints_tables_where_they_are_asked_for(
    saved: Save, output: Output
) -> None:
    path = saved(FUNCTIONS)

    full = FUNCTIONS.report(full=True)
    assert output("show", path, "--full") == full + "\n"
    few = FUNCTIONS.report(full=True, max_rows=2)
    assert output("show", path, "--full", "--max-rows=2") == few + "\n"
    by_calls = FUNCTIONS.report(full=True, sort_by="calls")
    assert output("show", path, "--full", "--sort-by=calls") == by_calls + "\n"


#: A program of two steps.
PROGRAM = replace(
    FUNCTIONS,
    program=Program("train.py", FUNCTIONS.wall_ns),
)


def test_show_prints_the_screen_of_a_program(saved: Save, output: Output) -> None:
    path = saved(PROGRAM)

    screen = PROGRAM.report()
    assert screen.startswith("torchprof_hooks: train.py, ")
    assert output("show", path) == screen + "\n"
    tables = program_text(PROGRAM)
    assert output("show", path, "--full") == f"{screen}\n\n{tables}\n"


def test_show_writes_a_page(saved: Save, output: Output, tmp_path: Path) -> None:
    path, file = saved(FUNCTIONS), tmp_path / "page.html"

    assert output("show", path, "--format", "html", "-o", str(file)) == ""
    assert file.read_text() == page(FUNCTIONS) + "\n"
    assert output("show", path, "--format", "html") == page(FUNCTIONS) + "\n"


def test_what_has_all_rows_takes_no_grouping(
    saved: Save, complaint: Callable[..., str]
) -> None:
    line = complaint("show", saved(PROGRAM), "--format=html", "--by=class")
    assert line == "--by is for rows, but --format html has all of them"


@pytest.mark.parametrize("format_", [*FORMATS, "html"])
def test_show_writes_to_a_file(
    saved: Save, output: Output, tmp_path: Path, format_: str
) -> None:
    path, file = saved(FUNCTIONS), tmp_path / "shown"

    assert output("show", path, "--format", format_, "-o", str(file)) == ""
    assert file.read_text() == output("show", path, "--format", format_)


def test_show_cannot_write_everywhere(
    saved: Save, complaint: Callable[..., str], tmp_path: Path
) -> None:
    where = str(tmp_path / "missing" / "page.html")

    said = complaint("show", saved(STEP), "--format", "html", "-o", where)
    assert said == f"cannot write {where}: No such file or directory"


def test_compare_writes_a_page(saved: Save, output: Output, tmp_path: Path) -> None:
    old, new = saved(slowed()), saved(slowed(1.5, seed=1), "new.json")
    file = tmp_path / "page.html"

    assert output("compare", old, new, "--format=html", "-o", str(file), code=1) == ""
    made = page_of(comparison_document(found(old, new)))
    assert file.read_text() == made + "\n"


def found(old: str, new: str) -> Comparison:
    return compare(Profile.load(old), Profile.load(new))


def test_show_takes_the_width_of_the_terminal(
    saved: Save, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")

    assert output("show", saved(FUNCTIONS)) == FUNCTIONS.report(width=60) + "\n"


def test_show_with_fewer_rows(saved: Save, output: Output) -> None:
    path = saved(STEP)

    assert "... 6 more rows" in output("show", path, "--full", "--max-rows", "2")
    assert "... 6 more rows" in output("show", path, "--by=module", "--max-rows", "2")


@pytest.mark.parametrize("by", ["module", "class", "function", "call"])
def test_show_groups_rows(by: Grouping, saved: Save, output: Output) -> None:
    path = saved(FUNCTIONS)

    assert f"by {by}" in output("show", path, "--by", by)
    document = json.loads(output("show", path, "--by", by, "--format", "json"))
    table = csv.DictReader(
        io.StringIO(output("show", path, "--by", by, "--format", "csv"))
    )
    names = {row.name for row in FUNCTIONS.rows(by)}
    name = {"class": "classes"}.get(by, f"{by}s")
    assert {row["name"] for row in document["tables"][name]["rows"]} == names
    assert {row["name"] for row in table} == names


def test_show_for_flame_graphs(saved: Save, output: Output) -> None:
    path = saved(STEP)

    document = json.loads(output("show", path, "--format", "speedscope"))
    assert sum(sum(graph["weights"]) for graph in document["profiles"]) == STEP.wall_ns
    lines = output("show", path, "--format", "collapsed").splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == STEP.wall_ns


@pytest.mark.parametrize("stacks", ["speedscope", "collapsed"])
def test_stacks_cannot_be_grouped(stacks: str, saved: Save, complaint: Output) -> None:
    line = complaint("show", saved(STEP), "--format", stacks, "--by", "class")

    assert line == f"--by is for rows, but --format {stacks} has stacks"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["csv", "--max-rows=2"], "--max-rows is for tables, but --format csv has all"),
        (["speedscope", "--max-rows=2"], "but --format speedscope has all there is"),
        (["html", "--max-rows=2"], "but --format html has all there is"),
        (["json", "--sort-by=calls"], "--sort-by is for --format text, not for --f"),
        (["report", "--sort-by=calls"], "--sort-by is for --format text, not for --f"),
        (["text", "--max-rows=2"], "--max-rows is for tables: give --full or --by"),
        (["text", "--sort-by=self"], "--sort-by is for tables: give --full or --by"),
    ],
)
def test_what_a_format_does_not_heed_is_refused(
    options: list[str], line: str, saved: Save, complaint: Output
) -> None:
    assert line in complaint("show", saved(STEP), "--format", *options)


def test_a_page_of_a_comparison_has_all_rows(saved: Save, complaint: Output) -> None:
    path = saved(STEP)
    line = complaint("compare", path, path, "--format=html", "--max-rows=2")
    assert line == "--max-rows is for tables, but --format html has all"


@pytest.mark.parametrize("kind", FORMATS)
def test_an_empty_profile_has_every_format(
    kind: str, saved: Save, output: Output
) -> None:
    assert output("show", saved(profile_of()), "--format", kind)


def test_a_planted_slowdown_fails(saved: Save, output: Output) -> None:
    old, new = saved(slowed(), "a.json"), saved(slowed(1.5, seed=1), "b.json")

    printed = output("compare", old, new, code=1)

    assert re.search(r"Net\.slow +forward .* slower\n", printed)
    assert "Slower: 1 of 3 rows: most of all Net.slow, forward, by " in printed
    assert "Slower: 1 of 3 rows" in output(
        "compare", old, new, "--fail-above", "5%", code=1
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (slowed(), slowed()),
        (slowed(), slowed(seed=1)),  # noise alone
        (slowed(1.5), slowed()),  # faster
        (slowed(), slowed(1.02, noise=0, seed=1)),  # below 5 %
        (slowed(noise=0.5), slowed(1.1, noise=0.5, seed=1)),  # within noise
        (slowed(), hand_built({("Net.new", "forward"): timed(9, 9)}, {})),
        (profile_of(), profile_of()),
        (slowed(), profile_of()),
        (slowed(), slowed().merge(slowed(seed=1))),  # twice as many steps
    ],
)
def test_what_must_not_fail(
    old: Profile, new: Profile, saved: Save, output: Output
) -> None:
    printed = output("compare", saved(old, "a.json"), saved(new, "b.json"))

    assert "none of 3 rows" in printed or "nothing to compare" in printed


def test_the_threshold_decides(saved: Save, output: Output) -> None:
    old = saved(slowed(noise=0.001), "a.json")
    new = saved(slowed(1.1, noise=0.001, seed=1), "b.json")

    output("compare", old, new, "--fail-above=9.5%", code=1)
    output("compare", old, new, "--fail-above=10.5%", code=0)
    output("compare", old, new, "--fail-above=0%", "--by=call", code=1)
    output("compare", old, new, "--fail-above=3%", "--by=class", code=1)


def test_compare_with_fewer_rows(saved: Save, output: Output) -> None:
    path = saved(slowed())

    assert "... 2 more rows" in output("compare", path, path, "--max-rows=1")


@pytest.mark.parametrize("share", ["5%", "5.0 %", "0.05"])
def test_the_threshold_in_both_notations(
    share: str, saved: Save, output: Output
) -> None:
    path = saved(slowed())

    assert "by more than 5 %" in output("compare", path, path, "--fail-above", share)


@pytest.mark.parametrize(
    ("written", "wanted"),
    [("5", 'be a share, "2%" or 0.02: above 1, write "5%"'), ("-5%", "be a share, ")],
)
def test_what_is_no_threshold(
    written: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["compare", "a", "b", f"--fail-above={written}"])

    assert exit_.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"error: argument --fail-above: must {wanted}" in last


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["show"],
        ["show", "a", "--format", "xml"],
        ["show", "a", "--by", "layer"],
        ["show", "a", "--max-rows", "0"],
        ["show", "a", "--max-rows", "many"],
        ["compare", "a"],
        ["compare", "a", "b", "--fail-above", "much"],
        ["merge", "-o", "c"],
        ["merge", "a", "b"],
    ],
)
def test_what_cannot_be_parsed_is_exit_code_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(argv)

    assert exit_.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_a_folder_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["ranks", ""])

    assert exit_.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "argument folder: give the folder with the profiles of ranks" in last


@pytest.mark.parametrize("command", ["show", "compare", "merge"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])

    assert exit_.value.code == 0
    assert "usage" in capsys.readouterr().out


def test_merge(saved: Save, output: Output, tmp_path: Path) -> None:
    files = [saved(profile, f"{i}.json") for i, profile in enumerate([STEP] * 3)]
    merged = tmp_path / "merged.json"

    printed = output("merge", *files, "-o", str(merged))

    assert Profile.load(merged) == STEP.merge(STEP).merge(STEP)
    assert printed == f"{merged}: 3 profiles, 0 steps, 504.00ns wall\n"


def test_merge_into_one_of_the_files(saved: Save, output: Output) -> None:
    path = saved(STEP)

    output("merge", path, path, "-o", path)

    assert Profile.load(path) == STEP.merge(STEP)


def test_a_single_file_can_be_merged(
    saved: Save, output: Output, tmp_path: Path
) -> None:
    output("merge", saved(STEP), "-o", str(tmp_path / "one.json"))

    assert Profile.load(tmp_path / "one.json") == STEP


def test_what_cannot_be_merged_leaves_no_file(
    saved: Save, complaint: Output, tmp_path: Path
) -> None:
    merged = tmp_path / "merged.json"

    complaint("merge", saved(STEP), str(tmp_path / "missing"), "-o", str(merged))

    assert not merged.exists()


def test_a_place_that_cannot_be_written(
    saved: Save, complaint: Output, tmp_path: Path
) -> None:
    place = tmp_path / "missing" / "c.json"

    line = complaint("merge", saved(STEP), "-o", str(place))

    assert line == f"cannot write {place}: No such file or directory"


BAD_FILES = [
    (b"", "bad.json is not a whole JSON file"),
    (b'{"format": "torchprof_hooks pro', "bad.json is not a whole JSON file"),
    (b"\xff\xfe\x00", "bad.json is not a whole JSON file"),
    (b"PK\x03\x04", "bad.json is not a whole JSON file"),
    (b'{"traceEvents": []}', "bad.json is not a profile of torchprof_hooks"),
    (b"[]", "bad.json is not a profile of torchprof_hooks"),
    (
        b'{"format": "torchprof_hooks profile", "version": 99}',
        "bad.json has version 99",
    ),
    (
        b'{"format": "torchprof_hooks profile", "version": 6, "modules": 1}',
        "bad.json is damaged",
    ),
    (
        b'{"format": "torchprof_hooks profile", "version": 6, "modules": {},'
        b' "cells": "' + b"\\n long " * 10_000 + b'"}',
        "bad.json is damaged",
    ),
]


@pytest.mark.parametrize("bad_file", BAD_FILES, ids=range(len(BAD_FILES)))
@pytest.mark.parametrize("command", ["show", "compare", "merge"])
def test_a_bad_file_is_one_line(
    command: str,
    bad_file: tuple[bytes, str],
    saved: Save,
    complaint: Output,
    tmp_path: Path,
) -> None:
    content, reason = bad_file
    bad = tmp_path / "bad.json"
    bad.write_bytes(content)
    rest = {
        "show": [],
        "compare": [saved(STEP)],
        "merge": [saved(STEP), "-o", str(tmp_path / "c.json")],
    }[command]

    line = complaint(command, str(bad), *rest)

    assert reason in line
    assert len(line) < 400


def test_a_file_that_cannot_be_read(complaint: Output, tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"

    assert complaint("show", str(missing)) == (
        f"cannot read {missing}: No such file or directory"
    )
    assert complaint("show", str(tmp_path)) == f"cannot read {tmp_path}: Is a directory"


@given(st.integers(0, 10**6), st.binary(max_size=3), st.sampled_from(FORMATS))
def test_a_damaged_file_never_ends_in_a_traceback(
    place: int, put: bytes, kind: str
) -> None:
    """The file is still a profile, or exit code 2 is what there is."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        STEP.save(path)
        content = path.read_bytes()
        place %= len(content)
        path.write_bytes(content[:place] + put + content[place + len(put) :])

        assert main(["show", str(path), "--format", kind]) in (0, 2)
        assert main(["compare", str(path), str(path)]) in (0, 2)
