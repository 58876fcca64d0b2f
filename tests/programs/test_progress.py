"""Bars for work that takes long."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path

import pytest

from tests.build import STEP
from torchprof_hooks import Profile
from torchprof_hooks.documents import progress
from torchprof_hooks.program.cli import main


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setattr(progress, "DELAY_S", 0.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    """What merging three profiles writes on standard error."""
    files = [str(tmp_path / f"{n}.json") for n in range(3)]
    for file in files:
        STEP.save(file)
    monkeypatch.setattr(sys, "stderr", stream)
    assert main(["merge", *files, "-o", str(tmp_path / "all.json")]) == 0
    assert Profile.load(tmp_path / "all.json").steps == 3 * STEP.steps
    return stream.getvalue()


def test_a_bar_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = merged(tmp_path, monkeypatch, Terminal())
    assert "merging: " in shown
    assert "/3 [" in shown
    assert shown.split("\r")[-1].strip() == ""  # it goes when all is done


def test_nothing_elsewhere_or_for_what_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert merged(tmp_path, monkeypatch, io.StringIO()) == ""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert merged(tmp_path, monkeypatch, Terminal()) == ""
    monkeypatch.undo()
    monkeypatch.setattr(progress, "DELAY_S", 3600.0)
    assert merged(tmp_path, monkeypatch, Terminal()).strip() == ""


def test_a_bar_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python starts none while it ends, and tqdm would warn of that."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    before = {*threading.enumerate()}
    for _ in progress.with_progress(range(3), "working"):
        assert {*threading.enumerate()} == before
