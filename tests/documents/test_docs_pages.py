"""Public names and rows of reports are on the pages."""

from __future__ import annotations

import re
from pathlib import Path

import torchprof_hooks
from torchprof_hooks import function_hooks, link_hooks
from torchprof_hooks.profiles import names
from torchprof_hooks.profiles.phases import PHASE_TITLES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


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
