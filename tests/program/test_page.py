"""The page that a program leaves behind."""

from __future__ import annotations

from pathlib import Path

from tests.programs import TRAIN, python
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


def test_a_page_that_cannot_be_written_is_known_at_once(tmp_path: Path) -> None:
    page = tmp_path / "missing" / "page.html"
    result = python("-m", "torchprof_hooks", "--html", str(page), "-c", TRAIN)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"--html {page}: the folder {page.parent} does not exist" in result.stderr
