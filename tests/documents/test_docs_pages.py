"""The pages belong together: none is lost, links lead somewhere, names exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchprof_hooks
from torchprof_hooks import function_hooks, link_hooks
from torchprof_hooks.documents.words import PHASE_TITLES
from torchprof_hooks.profiles import names

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


def in_toctrees() -> list[Path]:
    """Pages that a table of contents names."""
    found = []
    for page in SITE:
        for tree in re.findall(
            r":::\{toctree\}\n(.*?)\n:::", page.read_text("utf-8"), re.DOTALL
        ):
            names = [line for line in tree.split("\n") if line and line[0] != ":"]
            found += [(page.parent / name).with_suffix(".md") for name in names]
    return found


def test_every_page_is_in_one_table_of_contents() -> None:
    assert sorted(in_toctrees()) == [p for p in SITE if p != DOCS / "index.md"]


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


def test_the_architecture_names_what_is_there() -> None:
    package = ROOT / "torchprof_hooks"
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    folders = {p.parent for p in package.rglob("*.py")} - {package}
    for folder in folders:
        if folder.parent == package or folder.parent.name == "capture":
            assert f"`{folder.name}/`" in text, folder
    outside = text.partition("Inside `capture/`")[0]  # whose folders are all named
    for name in re.findall(r"`([a-z_/]+/)`", outside):
        inside = [package / name, package / "capture" / name, ROOT / name]
        inside += [folder / name for folder in package.iterdir()]
        assert any(place.is_dir() for place in inside), name
    for name in re.findall(r"`([a-z_/]+\.(?:py|cpp))`", text):
        assert list(package.rglob(name)) or (ROOT / name).exists(), name


@pytest.mark.thorough  # otherwise `make docs` says so
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("myst_parser", "furo")),
    reason="needs the extra `docs`",
)
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q"]
    done = subprocess.run(
        [*command, "-d", str(tmp_path / "doctrees"), str(DOCS), str(tmp_path / "site")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for page in SITE:
        made = tmp_path / "site" / page.relative_to(DOCS).with_suffix(".html")
        assert made.exists()
