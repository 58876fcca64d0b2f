"""Pages of the site that lie elsewhere in the project, and those that a profile makes.

Such a page has one line, ``This page is [ARCHITECTURE.md](../ARCHITECTURE.md).``, which
a viewer of Markdown shows. The site shows the file itself, with its links made to fit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torchprof_hooks.profile_type import Profile

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE: Final = Path(__file__).parent
_POINTER: Final = re.compile(r"This page is \[[^]]*\]\(([^)]*)\)\.\s*")
_LINK: Final = re.compile(r"(?<=\]\()(?!https?://|#)([^)#\s]+)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _read_elsewhere)
    app.connect("build-finished", _write_samples)
    return {"parallel_read_safe": True}


def _write_samples(app: Sphinx, exception: Exception | None) -> None:
    """Write the page and the JSON of a profile beside the pages, to be looked at."""
    if exception is None and app.builder.format == "html":
        profile = Profile.load(HERE / "samples" / "char_lm_functions.json")
        profile.to_html(app.outdir / "sample.html")
        (app.outdir / "sample.json").write_text(profile.to_json(), "utf-8")


def _read_elsewhere(app: Sphinx, name: str, source: list[str]) -> None:
    there = _target_of(source[0])
    if there is not None:
        app.env.note_dependency(str(there))
        source[0] = _with_links_from_here(there, _pages_elsewhere())


def _target_of(text: str) -> Path | None:
    found = _POINTER.fullmatch(text)
    return (HERE / found[1]).resolve() if found else None


def _pages_elsewhere() -> Mapping[Path, Path]:
    """By the file, the page that stands for it."""
    pages = {page: _target_of(page.read_text("utf-8")) for page in HERE.glob("*.md")}
    return {there: page for page, there in pages.items() if there is not None}


def _with_links_from_here(there: Path, pages: Mapping[Path, Path]) -> str:
    def from_here(link: re.Match[str]) -> str:
        target = (there.parent / link[1]).resolve()
        return os.path.relpath(pages.get(target, target), HERE)

    return _LINK.sub(from_here, there.read_text("utf-8"))
