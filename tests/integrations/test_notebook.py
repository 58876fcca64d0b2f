"""Notebooks, run by a kernel of their own."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import STEP
from tests.reports.html.test_browser import browser, frames
from tests.reports.html.test_page import Page
from torchprof_hooks.reports.html.page import profile_page
from torchprof_hooks.reports.screen.screen import profile_screen

__all__ = ["browser"]  # a fixture

BEGIN = """
import torch
from torch import nn
model, inputs = nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.ones(2, 4)
"""
TRAIN = "model(inputs).sum().backward()"


#: Each test looks at one of them; one kernel runs them all.
CELLS = {
    "load": "%load_ext torchprof_hooks",
    "begin": BEGIN,
    "profiled": f"%%torchprof --functions -o found\n{TRAIN}",
    "profile": "found",
    "profiler": f"from torchprof_hooks import profile\nwith profile() as p: {TRAIN}\np",
    "exception": "%%torchprof\nmodel(inputs)\n1 / 0",
    "unknown option": f"%%torchprof --nothing\n{TRAIN}",
    "wrong name": f"%%torchprof -o 1x\n{TRAIN}",
    "open quote": f"%%torchprof -o 'found\n{TRAIN}",
    "quoted name": f"%%torchprof -o 'quoted'\n{TRAIN}",
}

Outputs = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def outputs() -> Outputs:
    """What comes of each cell."""
    reason = "of the extra `test`"
    nbclient = pytest.importorskip("nbclient", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    v4 = pytest.importorskip("nbformat.v4", reason=reason)
    cells = [v4.new_code_cell(cell) for cell in CELLS.values()]
    notebook = v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=600,
        startup_timeout=600,
        allow_errors=True,
    )
    client.execute()
    done = zip(CELLS, notebook.cells, strict=True)
    return {name: cell.outputs for name, cell in done}


def shown_page(output: dict[str, Any]) -> Page:
    """The page in a frame."""
    frame = output["data"]["text/html"]
    assert frame.startswith('<iframe sandbox="allow-scripts" ')
    found = re.search(r'srcdoc="([^"]*)"', frame)
    assert found
    return Page(unescape(found[1]))


def names(page: Page) -> set[str]:
    return {page.data["texts"][item[0]] for item in page.data["rows"]["module"]}


@pytest.mark.slow
def test_a_cell_is_profiled(outputs: Outputs) -> None:
    assert outputs["load"] == outputs["begin"] == []
    [output] = outputs["profiled"]
    assert {"Sequential", "Sequential.0"} <= names(shown_page(output))
    assert "function" in shown_page(output).data["rows"]
    assert output["data"]["text/plain"].startswith("torchprof_hooks: ")
    assert "linear" in output["data"]["text/plain"]


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["profile", "profiler"])
def test_a_profile_and_a_profiler_show_themselves(outputs: Outputs, cell: str) -> None:
    [output] = outputs[cell]
    assert "Sequential.0" in names(shown_page(output))
    assert output["data"]["text/plain"].startswith("torchprof_hooks: ")


@pytest.mark.slow
def test_an_exception_is_shown_with_what_was_measured(outputs: Outputs) -> None:
    [error, output] = outputs["exception"]
    assert error["ename"] == "ZeroDivisionError"
    assert "Sequential.0" in names(shown_page(output))


@pytest.mark.slow
def test_options_that_there_are_not(outputs: Outputs) -> None:
    [error] = outputs["unknown option"]
    assert "unrecognized arguments: --nothing" in error["text"]
    [error] = outputs["wrong name"]
    assert "'1x' is no name of a variable; usage: %%torchprof [--f" in error["text"]
    [error] = outputs["open quote"]
    assert "UsageError: No closing quotation; usage: " in error["text"]
    assert outputs["quoted name"][-1]["output_type"] == "display_data"


def test_text_is_what_is_left_without_html() -> None:
    assert STEP._repr_mimebundle_() == {"text/plain": profile_screen(STEP)}


@pytest.mark.browser
@pytest.mark.slow
def test_the_frame_is_a_page(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "notebook.html"
    file.write_text(f"<!DOCTYPE html><html><body>{STEP._repr_html_()}</body></html>")
    page = browser.new_page()
    page.goto(file.as_uri())
    frame = page.frames[1]
    frame.wait_for_selector("[data-ready]", state="attached")
    frame.locator('[aria-label^="Net.b (Block)"]').click()
    assert frames(frame)["Net.b (Block)"] == 100


def test_the_frame_holds_the_page_and_nothing_of_it_leaks() -> None:
    frame = STEP._repr_html_()
    assert unescape(frame.partition('srcdoc="')[2]).startswith(profile_page(STEP))
    assert [tag for tag, _ in Page(frame).elements] == ["iframe"]
