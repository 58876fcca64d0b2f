"""Bars for work that takes long."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.helpers import STEP
from torchprof_hooks import Profile
from torchprof_hooks.program import progress
from torchprof_hooks.program.file_tools import main


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
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    pytest.importorskip("tqdm")
    shown = merged(tmp_path, monkeypatch, Terminal())
    assert "merging: " in shown
    assert "/3 [" in shown
    assert shown.split("\r")[-1].strip() == ""  # it goes when all is done


def test_nothing_elsewhere_or_for_what_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "DELAY_S", 3600.0)
    assert merged(tmp_path, monkeypatch, Terminal()).strip() == ""
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    assert merged(tmp_path, monkeypatch, io.StringIO()) == ""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert merged(tmp_path, monkeypatch, Terminal()) == ""
