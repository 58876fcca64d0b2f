"""The page that a program leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.documents.test_page import Page, data_of
from tests.running import python


def rows_of(page: str) -> dict[str, dict[str, Any]]:
    """The values of each module in a page."""
    [table] = (t for t in data_of(page)["tables"] if t["name"] == "rows.module")
    columns = table["columns"]
    return {
        name: {column["name"]: column["values"][row] for column in columns}
        for row, name in enumerate(table["names"] or table["labels"])
    }


COMPILING = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        torch._dynamo.graph_break()
        return y.relu()

net = torch.compile(Net(), backend="eager")
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for size in (2, 2, 3, 3):
    optimizer.zero_grad()
    net(torch.ones(size, 4)).sum().backward()
    optimizer.step()
"""


def test_what_was_compiled_is_told_in_text_and_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ("--tables", "--html", str(page), "-c", COMPILING)
    result = python("-m", "torchprof_hooks", *arguments)
    assert result.returncode == 0, result.stderr

    # Before and after the break, for two sizes; backward runs as it is.
    section = result.stderr.partition("\nCompilation\n")[2].partition("\n\n")[0]
    first, *lines = section.splitlines()
    assert " in 4 compilations" in first
    assert "Recompiled: 2 times" in lines
    assert "Graph breaks: 2 times" in lines

    text = page.read_text()
    assert "-c" in Page(text).texts
    rows = rows_of(text)
    assert {"Net", "(optimizer) SGD"} <= {*rows}
    assert rows["(torch.compile)"]["calls"] == 2  # after the start-up
    assert rows["Net"]["compiled"] == "compiled"
    for told in (result.stderr, " ".join(Page(text).texts)):
        _, breaks = " ".join(told.split()).split("torch.compile broke graphs 2 times")
        assert "graph_break()" in breaks
        _, sizes = " ".join(told.split()).split("compiled code again 2 times")
        assert "size mismatch" in sizes
