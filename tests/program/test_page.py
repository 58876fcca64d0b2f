"""The page that a program leaves behind."""

from __future__ import annotations

from pathlib import Path

from tests.program.test_tips import COMPILING
from tests.programs import EACH_STEP, TRAIN, python
from tests.reports.html.test_page import Page, shown


def test_a_program_writes_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = python("-m", "torchprof_hooks", "--html", str(page), "-c", TRAIN)
    assert result.stdout == "trained\n"
    text = page.read_text()
    assert "Profile of -c" in shown(text)
    data = Page(text).data
    names = {data["texts"][item[0]] for item in data["rows"]["module"]}
    assert {"Sequential", "Sequential.0", "(optimizer) SGD"} <= names


def test_what_was_compiled_is_told_in_text_and_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ("--full", *EACH_STEP, "--html", str(page), "-c", COMPILING)
    result = python("-m", "torchprof_hooks", *arguments)
    assert result.returncode == 0, result.stderr

    # Before and after the break, for two sizes; backward runs as it is.
    section = result.stderr.partition("\nCompilation\n---\n")[2].partition("\n\n")[0]
    first, *lines = section.splitlines()
    assert first.endswith(" in 4 compilations")
    assert any(line.endswith("  Dynamo") for line in lines)
    assert "   Recompiled: 2 times" in lines
    assert "   Graph breaks: 2 times" in lines
    assert "   Slowest of 4 compilations:" in lines

    text = page.read_text()
    data = Page(text).data
    rows = {data["texts"][item[0]]: item for item in data["rows"]["module"]}
    assert rows["(torch.compile)"][5] == 2  # calls, after the start-up
    marks = {name: data["texts"][item[6]] for name, item in rows.items()}
    assert marks["Net"] == "compiled"
    for tip in ("torch.compile broke graphs 2 times", "compiled code again 2 times"):
        assert tip in " ".join(result.stderr.split())
        assert tip in " ".join(shown(text).split())


def test_a_page_that_cannot_be_written_is_known_at_once(tmp_path: Path) -> None:
    page = tmp_path / "missing" / "page.html"
    result = python("-m", "torchprof_hooks", "--html", str(page), "-c", TRAIN)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"--html {page}: the folder {page.parent} does not exist" in result.stderr
