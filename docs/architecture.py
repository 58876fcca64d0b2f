"""Counts lines for ARCHITECTURE.md: ``make architecture`` writes them into its tables.

A table with a column ``lines`` has in its first column the names of files and folders,
relative to the package or to the project; patterns stand for files without folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "ARCHITECTURE.md"
PACKAGE: Final = ROOT / "torchprof_hooks"

_SOURCES: Final = {".py", ".pyi", ".h", ".cpp"}
_NAME: Final = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    """A row of a table that has a number of lines.

    place: of the number, among the cells.
    """

    cells: list[str]
    place: int

    @property
    def names(self) -> list[str]:
        """The files and folders that are counted."""
        return _NAME.findall(self.cells[1])

    def counted(self) -> int:
        """The number of lines that there are."""
        return sum(lines_of(path) for name in self.names for path in paths_of(name))

    def __str__(self) -> str:
        counted = self.counted()
        step = 50 if counted >= 500 else 10
        cells = [*self.cells]
        cells[self.place] = f" {max(round(counted / step), 1) * step} "
        return "|".join(cells)


def paths_of(name: str) -> list[Path]:
    """The files and folders that a name stands for, which may be a pattern."""
    return sorted(PACKAGE.glob(name)) or sorted(ROOT.glob(name))


def lines_of(path: Path) -> int:
    """The lines of a file, or of all sources in a folder."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(
        len(file.read_text(encoding="utf-8").splitlines())
        for file in files
        if file.suffix in _SOURCES
    )


def lines_of_page(text: str) -> Iterator[str | Row]:
    """Lines of the page; those that have a number of lines as rows."""
    place: int | None = None
    for line in text.splitlines():
        cells = line.split("|")
        if not line.startswith("|"):
            place = None
        elif "lines" in (titles := [cell.strip() for cell in cells]):
            place = titles.index("lines")
        elif place is not None and _NAME.search(cells[1]):
            yield Row(cells, place)
            continue
        yield line


def main() -> None:
    """Write all numbers into the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text("\n".join(map(str, lines_of_page(text))) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
