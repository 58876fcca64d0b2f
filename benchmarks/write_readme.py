"""Puts the results into the benchmarks' README, and one table into the project's.

A line ``<!-- results: NAME -->`` and the next ``<!-- end -->`` enclose what comes from
``results/NAME.json``, or from several for ``comparison``, ``machine``, ``aims`` and
``gpu``; what is between other lines is written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import results
from page.aims import aims_table
from page.comparison import comparison, provenance
from page.gpu import gpu_results

HERE: Final = Path(__file__).parent
READMES: Final = (HERE / "README.md", HERE.parent / "README.md")

_SECTION: Final = re.compile(
    r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL
)


def with_results(text: str) -> str:
    """`text` with its sections made anew."""
    return _SECTION.sub(lambda m: f"{m[1]}\n{_section(m[2])}\n\n{m[3]}", text)


def _section(name: str) -> str:
    if name == "comparison":
        return comparison(results.figures).markdown()
    if name == "machine":
        return provenance()
    if name == "gpu":
        return gpu_results()
    if name == "aims":
        return aims_table().markdown()
    try:
        tables: list[results.Table] = results.load(name)["tables"]
    except FileNotFoundError:
        return "Not measured."
    return "\n\n".join(table.markdown() for table in tables)


def main() -> None:
    for readme in READMES:
        readme.write_text(with_results(readme.read_text()))


if __name__ == "__main__":
    main()
