"""Puts the results of the benchmarks into their README, tables and pictures, and one
table into that of the project.

A line ``<!-- results: NAME -->`` and the next ``<!-- end -->`` enclose what comes from
``results/NAME.json``, or from several for ``summary``, ``comparison`` and ``aims``;
what is between other lines is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import results
from page.aims import aims_table
from page.comparison import comparison
from page.plot_accuracy import plot_cases, plot_kineto
from page.plot_overhead import plot_overhead
from page.summary import provenance, summary

HERE: Final = Path(__file__).parent
READMES: Final = (HERE / "README.md", HERE.parent / "README.md")

Figures = Mapping[str, Any]

#: By the name of the results: what each picture is called, and what draws it.
PICTURES: Final[Mapping[str, Sequence[tuple[str, Callable[[Figures, Path], None]]]]] = {
    "overhead": [("overhead", plot_overhead)],
    "accuracy": [("accuracy-cases", plot_cases), ("accuracy-kineto", plot_kineto)],
}

_SECTION: Final = re.compile(
    r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL
)


def with_results(text: str) -> str:
    """`text` with its sections made anew."""
    return _SECTION.sub(lambda m: f"{m[1]}\n{_section(m[2])}\n\n{m[3]}", text)


def _section(name: str) -> str:
    if name == "summary":
        return f"{summary(_figures).markdown()}\n\n{provenance()}"
    if name == "comparison":
        return comparison(_figures).markdown()
    if name == "aims":
        return aims_table().markdown()
    figures = _figures(name)
    if figures is None:
        return "Not measured."
    tables: list[results.Table] = results.load(name)["tables"]
    return "\n\n".join([*_pictures(name, figures), *(t.markdown() for t in tables)])


def _pictures(name: str, figures: Figures) -> list[str]:
    shown = []
    for title, draw in PICTURES.get(name, ()):
        draw(figures, results.DIRECTORY / f"{title}.png")
        shown.append(f"![{title}](results/{title}.png)")
    return shown


def _figures(name: str) -> Figures | None:
    try:
        figures: Figures = results.load(name)["figures"]
    except FileNotFoundError:
        return None
    return figures


def main() -> None:
    for readme in READMES:
        readme.write_text(with_results(readme.read_text()))


if __name__ == "__main__":
    main()
