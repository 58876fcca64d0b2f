"""The table of the project's README: ours and the best known others, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from results import Table

from page.summary import TOOLS, summary

#: Columns of the opening table, by their names there and here.
_COLUMNS: Final = {
    "": "",
    "gives times of": "gives times of",
    "step, GPT-2 small": "step",
    "forward right": "forward right",
    "backward right": "backward right",
}
#: Rows that are left out: variants, and tools that few know.
_LEFT_OUT: Final = {
    "torchprof_hooks whole program",
    "Lightning SimpleProfiler",
    "Lightning PyTorchProfiler",
    "pytorch_memlab",
}


def comparison(figures_of: Callable[[str], Mapping[str, Any] | None]) -> Table:
    """A part of `summary`; `figures_of` is what that takes."""
    whole = summary(figures_of)
    places = [whole.headers.index(name) for name in _COLUMNS]
    rows = [
        [row[place] for place in places]
        for row, tool in zip(whole.rows, TOOLS, strict=True)
        if tool not in _LEFT_OUT
    ]
    return Table("", list(_COLUMNS.values()), rows)
