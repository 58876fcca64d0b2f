"""Bars for work that takes long."""

from __future__ import annotations

import io
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.build import STEP
from tests.documents.docs_samples import SAMPLES
from torchprof_hooks import Profile, ProfilerHook
from torchprof_hooks.documents import progress
from torchprof_hooks.measure.origin import Origin
from torchprof_hooks.program.cli import main
from torchprof_hooks.program.ending import Outputs
from torchprof_hooks.program.flags import Flags


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


def test_the_seconds_go_on_while_nothing_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_shown = threading.Event()

    class Watched(Terminal):
        def write(self, text: str) -> int:
            if "0/1 [" in text:
                is_shown.set()
            return super().write(text)

    stream = Watched()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "DELAY_S", 1e-9)  # with 0, it is there from the begin
    with ThreadPoolExecutor(1) as pool:
        progress.wait_with_progress([pool.submit(is_shown.wait)], "waiting")
    assert stream.getvalue().split("\r")[-1].strip() == ""


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["tty", "file"])
def test_a_bar_while_the_report_of_a_program_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    program = Profile.load(SAMPLES / "exit_report.json")
    page = tmp_path / "report.html"
    flags = Flags(profile=True, html=str(page))
    Outputs(flags, Origin(0)).write(program, lambda found: found)
    shown, begin, report = stream.getvalue().partition("torchprof_hooks: examples/")
    assert begin
    assert page.is_file()
    # The bar has gone before the report is printed, and does not come back.
    assert ("writing the report: " in shown) == stream.isatty()
    assert "\r" not in report
    assert "Measuring took" in " ".join(report.split())


def test_a_bar_while_traces_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProfilerHook(save_steps=1, output_dir=str(tmp_path)) as hook:
        for _ in range(2):
            torch.ones(3).sum()
            hook.step()
    assert list(tmp_path.glob("timeline-*.json"))
    assert "writing traces: " in stream.getvalue()


def test_a_bar_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python starts none while it ends, and tqdm would warn of that."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    before = {*threading.enumerate()}
    for _ in progress.with_progress(range(3), "working"):
        assert {*threading.enumerate()} == before
