"""Notebooks, run by a kernel of their own."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow

BEGIN = """
import torch
from torch import nn
model, inputs = nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.ones(2, 4)
"""
TRAIN = "model(inputs).sum().backward()"

#: Each test looks at some of them; one kernel runs them all.
CELLS = {
    "begin": BEGIN,
    "profiler": f"from torchprof_hooks import profile\nwith profile() as p: {TRAIN}\np",
    "profile": "p.profile",
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


def is_page(output: dict[str, Any]) -> bool:
    """Whether this shows a profile: as a page, and as text where there is no HTML."""
    shown = output["data"]
    return "srcdoc=" in shown["text/html"] and "Sequential" in shown["text/plain"]


@pytest.mark.parametrize("cell", ["profile", "profiler"])
def test_a_profile_and_a_profiler_show_themselves(outputs: Outputs, cell: str) -> None:
    [output] = outputs[cell]
    assert is_page(output)
