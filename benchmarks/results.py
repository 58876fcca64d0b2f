"""Results of benchmarks: files in `results/`, from which the README's tables are made.

A file holds what the benchmark printed, figures by name for other tables to pick from,
and on what it was measured. Nothing in these files is written by hand.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

#: A try may have a folder of its own.
DIRECTORY = Path(os.environ.get("BENCH_RESULTS") or Path(__file__).parent / "results")

Cell = str | int | float


@dataclass(frozen=True)
class Table:
    """What a benchmark shows. Cells that are numbers are aligned, and printed as they
    are: whoever makes a table rounds them, or formats them as text."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """The table under its title, with a paragraph for each note."""
        title = [f"**{self.title}**"] if self.title else []
        # As text: tabulate would round numbers as it likes.
        cells = [[str(cell) for cell in row] for row in self.rows]
        align = ["left", *["right"] * (len(self.headers) - 1)]
        table = tabulate(
            cells,
            self.headers,
            tablefmt="github",
            disable_numparse=True,
            colalign=align if cells else None,
        )
        return "\n\n".join([*title, table, *self.notes])


def save(
    name: str, tables: Sequence[Table], figures: Mapping[str, Any] | None = None
) -> None:
    """Print the tables, and write them to `results/NAME.json`.

    figures: what other tables refer to, as JSON; the names are the benchmark's own.
    """
    for table in tables:
        print(f"\n{table.markdown()}", flush=True)
    write(name, tables, figures)


def write(
    name: str, tables: Sequence[Table], figures: Mapping[str, Any] | None = None
) -> None:
    """The same without printing."""
    content = {
        "name": name,
        "machine": machine(),
        "tables": [asdict(table) for table in tables],
        "figures": figures or {},
    }
    DIRECTORY.mkdir(exist_ok=True)
    path = DIRECTORY / f"{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")


def load(name: str) -> dict[str, Any]:
    """What `save` wrote.

    Raises:
        FileNotFoundError: this benchmark has not been run here.
    """
    content: dict[str, Any] = json.loads((DIRECTORY / f"{name}.json").read_text())
    content["tables"] = [Table(**table) for table in content["tables"]]
    return content


def figures(name: str) -> Mapping[str, Any] | None:
    """The figures of a benchmark; None if it has not been run here."""
    try:
        found: Mapping[str, Any] = load(name)["figures"]
    except FileNotFoundError:
        return None
    return found


def machine() -> dict[str, Any]:
    """What the figures were measured on, and when."""
    found = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
        found["cuda"] = torch.version.cuda
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1] for line in lines if line.startswith("model name"))
    return next(names, platform.machine()).strip()
