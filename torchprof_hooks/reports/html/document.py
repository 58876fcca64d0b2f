"""What pages are made of, and their frame: what a browser needs besides what is shown.
Names are never markup, in HTML and in the data for the script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from importlib.resources import files
from textwrap import dedent
from typing import Any, Final, NamedTuple

from torchprof_hooks.reports.hottest import Answer
from torchprof_hooks.reports.table import Table

_PACKAGE: Final = "torchprof_hooks.reports.html"

#: Code points that HTML forbids, or that are no characters.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]"
)
#: What could end the element that the data is in, or begin a comment in it.
_MARKUP: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}

#: Data for the script on a page without anything that it could draw.
_NO_DATA: Final[Mapping[str, object]] = {
    "texts": (),
    "records": (),
    "trees": {},
    "rows": {},
}


class Section(NamedTuple):
    """A part of a page with its heading; `content` is HTML."""

    heading: str
    content: str


def document(
    title: str,
    subtitle: str,
    sections: Iterable[Section],
    data: Mapping[str, Any] = _NO_DATA,
) -> str:
    """The whole page, in ASCII, so that no encoding can spoil it.

    Its content security policy has the browser run only the script that we put there,
    whatever else the page may hold, and fetch nothing.

    title, subtitle: texts.
    data: for the script, as JSON.
    """
    script = _asset("page.js")
    body = "".join(map(_section, sections))
    page = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(title)}</title><style>{_asset("page.css")}</style></head><body>
<header><div><h1>{escaped(title)}</h1><p>{escaped(subtitle)}</p></div></header>
<main>{body}</main>
<script type="application/json" id="data">{_script_json(data)}</script>
<script>{script}</script>
</body></html>
"""
    return page.encode("ascii", "xmlcharrefreplace").decode()


def _section(section: Section) -> str:
    heading = f"<h2>{escaped(section.heading)}</h2>" if section.heading else ""
    return f"<section>{heading}{section.content}</section>"


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _asset(name: str) -> str:
    return (files(_PACKAGE) / "assets" / name).read_text(encoding="ascii").strip()


def _script_json(content: Any) -> str:
    """JSON that may stand in a ``<script type="application/json">``. It is ASCII, so
    that U+2028, which ends a line in JavaScript, is written as an escape as well."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for character, written in _MARKUP.items():
        text = text.replace(character, written)  # there are none outside of strings
    return text


def escaped(text: str) -> str:
    """The text as it may stand between tags, or in quotes as an attribute. No line
    breaks between a number and its %."""
    printable = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
    return escape(printable.replace(" %", "\N{NO-BREAK SPACE}%"))


def paragraphs(texts: Iterable[str], kind: str = "") -> str:
    """The texts, each as a paragraph.

    kind: its class, for the style.
    """
    mark = f' class="{kind}"' if kind else ""
    return "".join(f"<p{mark}>{escaped(text)}</p>" for text in texts)


def bullets(texts: Iterable[str]) -> str:
    """The texts as a list."""
    return f"<ul>{''.join(f'<li>{escaped(text)}</li>' for text in texts)}</ul>"


def preformatted(lines: Iterable[str]) -> str:
    """Lines of a text report as they are, in a box that they may be wider than."""
    text = escaped(dedent("\n".join(lines)))
    return f'<pre class="scroll" tabindex="0">{text}</pre>'


def answer_cards(found: Iterable[Answer]) -> str:
    """The answers side by side."""
    cards = (
        f'<div class="card"><h2>{escaped(question)}</h2>'
        f'<p class="answer">{_breakable(answer)}</p>'
        f"{paragraphs([evidence] * bool(evidence))}</div>"
        for question, answer, evidence in found
    )
    return f'<section class="cards" aria-label="Summary">{"".join(cards)}</section>'


def _breakable(name: str) -> str:
    """The name as HTML, in which a line may break after each dot."""
    return re.sub(r"\.(?=\D)", ".<wbr>", escaped(name))


def html_table(caption: str, shown: Table) -> str:
    """A table in a box that it may be wider than."""
    (corner, *labels), columns = shown
    headers = _cell("th", corner, True, "col") + "".join(
        _cell("th", column.header, column.is_words, "col") for column in columns
    )
    body = "".join(
        "<tr>"
        + _cell("th", label, True, "row")
        + "".join(_cell("td", c.texts[line], c.is_words) for c in columns)
        + "</tr>"
        for line, label in enumerate(labels)
    )
    return (
        f'<div class="scroll"><table class="rows"><caption>{escaped(caption)}</caption>'
        f"<thead><tr>{headers}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(tag: str, text: str, is_words: bool, scope: str = "") -> str:
    scoped = f' scope="{scope}"' if scope else ""
    aligned = ' class="text"' if is_words else ""
    return f"<{tag}{scoped}{aligned}>{escaped(text)}</{tag}>"
