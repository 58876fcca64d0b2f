"""The frame of a page: what a browser needs besides what is shown."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from torchprof_hooks.reports.html.escaping import escaped, script_json

_PACKAGE: Final = "torchprof_hooks.reports.html"


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
<script type="application/json" id="data">{script_json(data)}</script>
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
