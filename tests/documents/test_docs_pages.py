"""The pages belong together: none is lost, links lead somewhere, names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchprof_hooks
from torchprof_hooks import function_hooks, link_hooks
from torchprof_hooks.profiles import names
from torchprof_hooks.profiles.phases import PHASE_TITLES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = sorted(DOCS.rglob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "benchmarks" / "README.md", *SITE]


def text_of(path: Path) -> str:
    """A page, or the file that it stands for, without blocks of code."""
    text = path.read_text(encoding="utf-8")
    elsewhere = re.fullmatch(r"This page is \[.*\]\((\S+)\)\.\s*", text)
    if elsewhere:
        return text_of(path.parent / elsewhere[1])
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    """What a link to a heading of the page may be called."""
    titles = re.findall(r"^#+ (.*)$", text_of(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


def links(path: Path) -> Iterator[str]:
    """Links of the page itself that stay in the project."""
    own = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", own):
        if not target.startswith(("http://", "https://")):
            yield target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for link in links(path):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_public_name_is_on_a_page_of_the_api() -> None:
    pages = "".join(p.read_text(encoding="utf-8") for p in (DOCS / "api").glob("*.md"))
    documented = set(
        re.findall(r"auto(?:class|function|exception|data):: (\S+)", pages)
    )
    documented = {name.split("(")[0].rpartition(".")[2] for name in documented}
    modules = {"link_hooks", "function_hooks"}
    public = {*torchprof_hooks.__all__, *link_hooks.__all__, *function_hooks.__all__}
    assert public - documented - modules - {"__version__"} == set()


def test_the_glossary_has_all_phases_and_rows_that_are_no_modules() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    rows = [row for name, row in vars(names).items() if name.endswith("_NAME")]
    for word in [*PHASE_TITLES.values(), *rows]:
        assert f"`{word}`" in text, word


def test_llms_txt_names_pages_that_there_are() -> None:
    text = (DOCS / "extra" / "llms.txt").read_text(encoding="utf-8")
    pages = re.findall(r"\]\(([^)]*)\.html\)", text)
    assert "agents" in pages
    assert all((DOCS / f"{page}.md").exists() for page in pages)
