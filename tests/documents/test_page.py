"""Pages as text: what is in them without a script, and what the script is given."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.documents.pages import BARS, COURSE, NAMES, document, rows, tree
from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Column,
    Facts,
    Table,
    Tip,
    Tips,
)
from torchprof_hooks.documents.render.html import framed, page_of
from torchprof_hooks.documents.words import HEATS

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "torchprof_hooks" / "documents" / "render" / "assets"
SOURCES = ROOT / "page"

#: Names that would be something else in HTML, in a script, or in JSON.
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "<!--",
    "' onmouseover='alert(1)",
    "\u2028\u2029\ud800\x00\x1b[31m",
    "{{constructor.constructor('alert(1)')()}}",
    "&lt;b&gt;",
)


class Page(HTMLParser):
    """The elements and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_data(self, data: str) -> None:
        if self.inside and self.inside[-1] not in ("script", "style"):
            self.texts.append(data)

    def count(self, tag: str) -> int:
        return sum(each == tag for each, _ in self.tags)


def data_of(page: str) -> dict[str, Any]:
    [found] = re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert not {*"<>&"} & {*found}  # nothing in it can end it
    content: dict[str, Any] = json.loads(found)
    return content


def test_all_blocks_are_there_without_a_script() -> None:
    page = Page(page_of(document()))
    text = " ".join(page.texts).replace("\N{NO-BREAK SPACE}", " ")
    for wanted in (
        *("train.py", "2.00sec wall", "Hottest module", "43.8 %", "rank 3 is missing"),
        *("40.0 % of the time", "70.00ms", "Net.layers.99", "backward", "62.5 %"),
        "rank 1, slow",
        *("The loop waits for data: give it more workers.", "all of it, 5 %"),
    ):
        assert wanted in text
    assert "Net.layers.100" not in text  # of long tables, the first rows


def test_the_script_has_all_numbers_as_they_are() -> None:
    data = data_of(page_of(document()))
    tables = {each["name"]: each for each in data["tables"]}
    names = ("tree.modules", "rows.module", "rows.class", "phases", "steps")
    assert set(tables) == {*names, "memory_of_step", "over_time"}
    found = tables["tree.modules"]
    assert found["names"] == list(NAMES)
    assert found["depths"] == [0, 1, 1, 2, 0]
    assert found["columns"][2]["values"] == list(tree().columns[2].values)
    assert [column["detail"] for column in found["columns"]] == [False] * 4 + [True] * 2
    assert len(tables["rows.class"]["labels"]) == 250
    assert data["heat"] == list(HEATS)


def test_the_times_of_a_column_have_one_unit() -> None:
    times = Column("total", "ns", [3_200_000_000, 197_690_000, 3_124_000, 0])
    table = Table("rows", "Rows", "row", ["a", "b", "c", "d"], [times])
    texts = Page(page_of(document(table))).texts
    assert [t for t in texts if re.match(r"\d+\.\d+\w+$", t)] == [
        "3.20sec",
        "0.198sec",
        "0.00312sec",
    ]


def test_blocks_of_a_section_are_below_one_title() -> None:
    facts = Facts("memory", "", ["5.00MB"], section="Memory")
    more = replace(BARS, section="Memory")
    group = (replace(rows(3, f"own.{by}"), section="Own") for by in ("call", "class"))
    page = page_of(document(tree(), facts, COURSE, more, rows(3), *group))
    headings = re.findall(r"<(h[23])>(.*?)</h", page)
    assert headings == [
        *(("h2", "Modules"), ("h2", "Memory"), ("h3", COURSE.title)),
        *(("h3", "Phases"), ("h2", "Module"), ("h2", "Own")),
    ]
    assert page.count("<section") == page.count("</section>") == 8
    # The rows of what is a picture are there on demand.
    assert page.count("<details>") == 2
    assert "forward" in page.partition("<details>")[2].partition("</details>")[0]


def test_nothing_is_fetched_and_only_our_script_runs() -> None:
    page = page_of(document())
    assert page.isascii()
    assert not re.search(r"(src|href)=", page)
    [script] = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_never_markup(name: Any) -> None:
    usual, hostile = (
        document(
            Answers([Answer("a", each, each, evidence=each)], warnings=[each]),
            tree((each, *NAMES[1:])),
            Tips([Tip(each, each)]),
            Facts(each, each, [each]),
            title=each,
        )
        for each in ("name", name)
    )
    one, other = Page(page_of(usual)), Page(page_of(hostile))
    # A name may be broken after its dots.
    tags = [[tag for tag, _ in page.tags if tag != "wbr"] for page in (one, other)]
    assert tags[0] == tags[1]
    assert other.count("script") == 2
    content = data_of(page_of(hostile))
    assert content["tables"][0]["names"][0] == name


def test_a_page_in_a_notebook_can_reach_nothing() -> None:
    frame = framed(page_of(document()))
    assert frame.startswith('<iframe sandbox="allow-scripts"')
    assert frame.count("<") == 2
    assert frame.endswith("</iframe>")


def test_the_bundle_is_that_of_the_sources(tmp_path: Path) -> None:
    if not (SOURCES / "node_modules").is_dir() or shutil.which("node") is None:
        pytest.skip("needs node and `npm ci` in page/")
    command = ["node", "build.mjs", str(tmp_path)]
    subprocess.run(command, cwd=SOURCES, check=True)
    for name in ("page.js", "LICENSES.txt"):
        assert (tmp_path / name).read_text() == (ASSETS / name).read_text()
