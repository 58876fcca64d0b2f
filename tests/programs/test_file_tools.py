"""The commands for files of profiles: `show`, `compare`, `merge`."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build import FUNCTIONS, STEP, profile_of, timed
from tests.compared_runs import in_turns
from tests.running import profiled
from torchprof_hooks import Profile
from torchprof_hooks.documents.build.exit_report import ExitLayout
from torchprof_hooks.documents.report import Layout, page, program_text, report
from torchprof_hooks.documents.words import OF_FILES
from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.program import Program
from torchprof_hooks.program.cli import main

FORMATS = ("text", "json", "csv", "speedscope")


class Tool:
    """The command, in a folder of its own."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def prints(self, command: str, code: int = 0) -> str:
        """What it prints where all is well."""
        assert main(shlex.split(command)) == code
        printed = self._capsys.readouterr()
        assert printed.err == ""
        return printed.out

    def complains(self, command: str) -> str:
        """What it says where it ends with 2: one line, that of argparse after some."""
        try:
            code: object = main(shlex.split(command))
        except SystemExit as exit_:
            code = exit_.code
        printed = self._capsys.readouterr()
        assert (code, printed.out) == (2, "")
        first, *rest = printed.err.splitlines()
        assert not rest or first.startswith("usage: ")
        return (rest or [first])[-1].removeprefix("torchprof_hooks: ")


@pytest.fixture
def tool(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Tool:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    return Tool(capsys)


#: A program of two steps.
PROGRAM = replace(FUNCTIONS, program=Program("train.py", FUNCTIONS.wall_ns))


@pytest.mark.parametrize("profile", [FUNCTIONS, PROGRAM])
@pytest.mark.parametrize(
    ("options", "layout"),
    [
        ("", {}),
        ("--full", {}),
        ("--full --max-rows=2", {"max_rows": 2}),
        ("--max-rows=2", {"max_rows": 2}),
        ("--sort-by=calls", {"sort_by": "calls"}),
    ],
)
def test_show_prints_the_report(
    profile: Profile, options: str, layout: dict[str, Any], tool: Tool
) -> None:
    """That of a program, too; sorted as asked for."""
    profile.save("a.json")
    shown = report(profile, Layout(**layout), full=bool(options), hints=OF_FILES)
    assert tool.prints(f"show a.json {options}") == shown + "\n"
    assert ("More: --full, --format html" in shown) == (not options)
    assert "<Class name>" not in shown


def test_show_is_as_wide_as_the_terminal(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    PROGRAM.save("a.json")
    for width in (70, 150):
        monkeypatch.setenv("COLUMNS", str(width))
        layout = Layout(width=width)
        expected = report(PROGRAM, layout, full=True, hints=OF_FILES)
        assert tool.prints("show a.json --full") == expected + "\n"
        tables = program_text(PROGRAM, ExitLayout(), width=width, with_memory=False)
        assert tool.prints("show a.json --format report") == tables + "\n"
    assert tool.prints("show a.json --format=html") == page(PROGRAM) + "\n"


@pytest.mark.parametrize("kind", [*FORMATS, "html"])
def test_every_format_is_printed_or_written_to_a_file(kind: str, tool: Tool) -> None:
    for profile in (FUNCTIONS, profile_of()):  # of nothing, too
        profile.save("a.json")
        printed = tool.prints(f"show a.json --format {kind}")
        assert printed
        assert tool.prints(f"show a.json --format {kind} -o shown") == ""
        assert Path("shown").read_text() == printed


@pytest.mark.parametrize("by", ["module", "class", "function", "call"])
def test_show_groups_rows(by: Grouping, tool: Tool) -> None:
    FUNCTIONS.save("a.json")
    show = f"show a.json --by {by}"
    assert f"by {by}" in tool.prints(show)
    document = json.loads(tool.prints(f"{show} --format json"))
    table = csv.DictReader(io.StringIO(tool.prints(f"{show} --format csv")))
    names = {row.name for row in FUNCTIONS.rows(by)}
    name = {"class": "classes"}.get(by, f"{by}s")
    assert {row["name"] for row in document["tables"][name]["rows"]} == names
    assert {row["name"] for row in table} == names


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("show a.json --format html --by=class", "--by is for --format text or json "),
        ("show a.json --format csv --max-rows=2", "--max-rows is for --format text or"),
        ("show a.json --format json --sort-by=calls", "--sort-by is for --format text"),
        ("show a.json --format html --full", "--full is for --format text, not html"),
        ("show a.json --full --by class", "--by prints one table, and --full all: gi"),
        ("compare a b --format json --max-rows 3", "--max-rows is for --format text, "),
        ("ranks . --format csv --max-rows 3", "--max-rows is for --format text, not c"),
        ("show a.json --format report", "is not the profile of a whole program"),
        ("compare a.json a.json -n 5", "--runs is for programs: give --run, too"),
        ("compare --run a b --keep a.json", "a.json is there already: name a new fold"),
        ("compare --run no.py a.json", "there is no file no.py"),
        ("compare --run 'python no.py' a.json", "leave python out: give the script, a"),
        ("compare --run '\"a' a.json", "is no command: No closing quotation"),
        ("compare a.py 'b.py --x'", "a.py is a program: give --run to run both"),
        ("compare . no", "cannot read no: No such file or directory"),
        ("show .", "cannot read .: Is a directory"),
        (
            "merge a.json -o no/c.json",
            "cannot write no/c.json: No such file or directory",
        ),
        ("compare a b --fail-above=5", 'must be a share, "2%" or 0.02: above 1, write'),
        ("show a --format xml", "error: argument --format: "),
        ("show a --max-rows 0", "error: argument --max-rows: '0' is not a positive nu"),
        ("merge a b", "error: "),
    ],
)
def test_what_is_wrong_is_one_line(command: str, line: str, tool: Tool) -> None:
    STEP.save("a.json")
    assert line in tool.complains(command)
    assert [path.name for path in Path().iterdir()] == ["a.json"]


@pytest.mark.parametrize("command", ["show", "compare", "merge", "ranks"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    assert exit_.value.code == 0
    assert "usage" in capsys.readouterr().out


# Sums


def test_merge(tool: Tool) -> None:
    for name in "abc":
        STEP.save(f"{name}.json")
    printed = tool.prints("merge a.json b.json c.json -o all.json")
    assert Profile.load("all.json") == STEP.merge(STEP).merge(STEP)
    assert printed == "all.json: 3 profiles, 0 steps, 504.00ns wall\n"
    tool.prints("merge a.json -o one.json")
    assert Profile.load("one.json") == STEP
    tool.prints("merge a.json a.json -o a.json")
    assert Profile.load("a.json") == STEP.merge(STEP)


# Damaged files


@pytest.mark.parametrize("command", ["show", "compare a.json", "merge -o c.json"])
def test_a_damaged_file_is_one_line(command: str, tool: Tool) -> None:
    STEP.save("a.json")
    Path("bad").write_bytes(b"\xff\xfe\x00")
    assert "bad is not a whole JSON file" in tool.complains(f"{command} bad")


@pytest.mark.parametrize("options", ["", "--memory "])
def test_a_profile_is_no_program(options: str, tool: Tool) -> None:
    profile_of(steps=3).save("profile.json")
    line = tool.complains(f"{options}profile.json")
    assert line.endswith("python -m torchprof_hooks show profile.json")


def test_a_program_may_be_called_as_profiles_are(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text("print('trained')")
    assert profiled(str(path)).out == "trained\n"


def test_a_program_is_no_profile(tool: Tool) -> None:
    Path("train.py").write_text("import torch\n")
    line = tool.complains("show train.py")
    assert "--save profile.json train.py" in line, line


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


# Where output goes


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_output_that_cannot_show_every_name(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, path = "Net.ä\ud800", str(tmp_path / "a.json")
    profile_of({(odd, "forward"): timed(1)}, {odd: "Net"}).save(path)
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    assert [main(["show", path, "--format", kind]) for kind in FORMATS] == [0] * 4


IN_PROCESS = """
import sys
from torchprof_hooks.program.cli import main
code = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(code)
"""


def in_process(command: str, stdout: int) -> tuple[int, bytes]:
    done = subprocess.run(
        [sys.executable, "-c", IN_PROCESS, *shlex.split(command)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "120"},
        check=False,
    )
    return done.returncode, done.stderr


def test_files_are_shown_without_torch(tmp_path: Path) -> None:
    FUNCTIONS.save(tmp_path / "a.json")
    with (tmp_path / "out").open("w") as file:
        done = in_process(f"show {tmp_path / 'a.json'}", file.fileno())
    assert done == (0, b"")
    assert (tmp_path / "out").read_text() == report(
        FUNCTIONS, Layout(), hints=OF_FILES
    ) + "\n"


def test_nobody_reads_to_the_end(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, runs in zip((old, new), in_turns(0, 3, {7: 2}), strict=True):
        folder.mkdir()
        for number, each in enumerate(runs):
            each.save(folder / f"{number}.json")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert in_process(f"compare {old} {new} --format json", writer) == (1, b"")
    finally:
        os.close(writer)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_disk(tmp_path: Path) -> None:
    STEP.save(tmp_path / "a.json")
    with open("/dev/full", "w") as full:
        code, said = in_process(f"show {tmp_path / 'a.json'}", full.fileno())
    assert code == 2
    assert said == (
        b"torchprof_hooks: cannot write the output: No space left on device\n"
    )
