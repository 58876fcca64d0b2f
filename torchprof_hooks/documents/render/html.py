"""A document as a page in one file, which a browser opens without a network.

Without JavaScript, it has the answers, all tables (the first rows of long ones) and
bars. The script in the page lets readers sort and filter tables, and draws pictures.
Names are never taken for markup, neither in HTML nor in the data for the script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Any, Final

from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Block,
    Column,
    Document,
    Facts,
    Table,
    Tips,
    Unit,
    Value,
)
from torchprof_hooks.documents.render.units import (
    best_byte_format,
    best_count_format,
    time_in_column,
)
from torchprof_hooks.documents.words import HEATS, share_text

_PACKAGE: Final = "torchprof_hooks.documents.render"
#: Rows of a table in HTML. The script shows as many as readers ask for.
_ROWS: Final = 100
#: Code points that HTML forbids, or that are not characters.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]"
)
#: Characters that could end the element of the data, or begin a comment in it.
_MARKUP: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
#: The colours of heat, in the legend above pictures that have them.
_HEATS: Final = ("less", *(f"{100 * share:g} %" for share in HEATS))


def page_of(document: Document) -> str:
    """The whole page, in ASCII, so that no encoding can spoil it.

    By its content security policy, the browser runs only our script, whatever else is
    in the page, and fetches nothing.
    """
    script, title = _asset("page.js"), escaped(document.title) or "Profile"
    notes = "".join(f"<p>{escaped(note)}</p>" for note in document.notes)
    body = "".join(_sections(document.blocks))
    tables = [block for block in document.blocks if isinstance(block, Table)]
    data = {"heat": HEATS, "tables": [_table_data(table) for table in tables]}
    page = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{_asset("page.css")}</style></head><body>
<header><div><h1>{title}</h1>{notes}</div></header>
<main>{body}</main>
<script type="application/json" id="data">{_script_json(data)}</script>
<script>{script}</script>
</body></html>
"""
    return page.encode("ascii", "xmlcharrefreplace").decode()


def framed(page: str) -> str:
    """A page as part of another one, such as a notebook. Its script cannot access the
    other page."""
    return (
        '<iframe sandbox="allow-scripts" title="Profile" loading="lazy" '
        'style="width:100%;height:44rem;border:0;border-radius:8px" '
        f'srcdoc="{escape(page)}"></iframe>'
    )


def escaped(text: str) -> str:
    """The text escaped for use between tags, or in a quoted attribute. No line breaks
    between a number and its %."""
    printable = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
    return escape(printable.replace(" %", "\N{NO-BREAK SPACE}%"))


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _asset(name: str) -> str:
    return (files(_PACKAGE) / "assets" / name).read_text(encoding="ascii").strip()


# The data for the script


def _table_data(table: Table) -> dict[str, Any]:
    columns = [
        {
            "title": column.title,
            "unit": column.unit,
            "name": column.name or column.title,
            "values": _plain(column.values),
            "detail": column.is_detail,
            "zeros": column.shows_zeros,
        }
        for column in table.columns
        if column.says_something
    ]
    return {
        "name": table.name,
        "title": table.title or table.corner,
        "corner": table.corner,
        "labels": list(table.labels),
        "names": [] if table.names == table.labels else list(table.names),
        "depths": list(table.depths),
        "tones": list(table.tones),
        "columns": columns,
    }


def _plain(values: Sequence[Value]) -> list[Value]:
    """Numbers with no more digits than are shown."""
    if float not in {*map(type, values)}:
        return [*values]
    return [
        round(v, 6 if abs(v) < 1e3 else None) if isinstance(v, float) else v
        for v in values
    ]


def _script_json(content: Any) -> str:
    """JSON for a ``<script type="application/json">``. It is ASCII, so U+2028, which
    ends a line in JavaScript, is escaped, too."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for character, written in _MARKUP.items():
        text = text.replace(character, written)  # JSON has them in strings only
    return text


# The HTML, which needs no script


def _group_of(block: Block) -> str:
    """Successive tables of one group ("rows.module", "rows.class") are together: the
    script shows one of them at a time."""
    group, dot, _ = block.name.partition(".")
    return group if dot and isinstance(block, Table) else ""


def _sections(blocks: Iterable[Block]) -> Iterator[str]:
    """The blocks, with those of one section together below its title."""
    shown = (b for b in blocks if not isinstance(b, Table) or b.labels)
    for title, inside in groupby(shown, lambda block: getattr(block, "section", "")):
        parts = []
        for group, found in groupby(inside, _group_of):
            alike = [*found]
            groups = [alike] if group else [[block] for block in alike]
            parts += [_part(each, "h3" if title else "h2") for each in groups]
        yield _titled(title, "".join(parts)) if title else "".join(parts)


def _part(group: Sequence[Block], heading: str) -> str:
    tables = [block for block in group if isinstance(block, Table)]
    if not tables:
        return _RENDERERS[type(group[0])](group[0])
    # In a section, the buttons are the titles of several.
    title = "" if heading == "h3" and len(tables) > 1 else tables[0].title
    return _titled(title, _tables(tables), heading)


def _titled(title: str, content: str, heading: str = "h2") -> str:
    above = f"<{heading}>{escaped(title)}</{heading}>" if title else ""
    return f"<section>{above}{content}</section>"


def _answers(block: Answers) -> str:
    warnings = "".join(f'<p class="warning">{escaped(w)}</p>' for w in block.warnings)
    cards = "".join(map(_card, block.shown))
    return (
        f'<section aria-label="Summary">{warnings}<div class="cards">{cards}</div>'
        "</section>"
    )


def _card(answer: Answer) -> str:
    share = share_text(answer.share, answer.uncertainty)
    texts = filter(None, [share and f"{share} of the time", answer.evidence])
    evidence = "".join(f"<p>{escaped(text)}</p>" for text in texts)
    following = f"<p>Next: {escaped(answer.next_step)}</p>" if answer.next_step else ""
    return (
        f'<div class="card"><h2>{escaped(answer.question)}</h2>'
        f'<p class="answer">{_breakable(answer.answer)}</p>{evidence}{following}</div>'
    )


def _breakable(name: str) -> str:
    """The name as HTML, where a line may break behind each dot."""
    return re.sub(r"\.(?=\D)", ".<wbr>", escaped(name))


def _tips(block: Tips) -> str:
    lines = [str(tip) for tip in block.tips]
    return _titled(block.title, _bullets(lines)) if lines else ""


def _facts(block: Facts) -> str:
    if len(block.lines) == 1:
        return _titled(block.title, f"<p>{escaped(block.lines[0])}</p>")
    return _titled(block.title, _bullets(block.lines)) if block.lines else ""


def _bullets(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escaped(text)}</li>' for text in texts)}</ul>"


_RENDERERS: Final[Mapping[type, Callable[[Any], str]]] = {
    Answers: _answers,
    Tips: _tips,
    Facts: _facts,
}


def _tables(tables: Sequence[Table]) -> str:
    first = tables[0]
    drawn = {"bars": _bars, "stack": _bars, "tree": _scale}.get(first.drawing)
    above = drawn(first) if drawn else ""
    notes = "".join(f'<p class="legend">{escaped(n)}</p>' for n in first.notes)
    static = "".join(map(_static_table, tables))
    names = escaped(" ".join(table.name for table in tables))
    drawing = escaped(first.drawing)
    if first.drawing == "bars" or (first.drawing and first.is_detail):
        static = f"<details><summary>As a table</summary>{static}</details>"
    place = f'<div data-tables="{names}" data-drawing="{drawing}">{static}</div>'
    return f"{above}{notes}{place}"


def _scale(table: Table) -> str:
    """The legend of the colours of a tree, if they are heat."""
    if not any(tone.startswith("heat") for tone in table.tones):
        return ""
    text = "the redder, the more of the memory layers of its kind have themselves:"
    if any(column.name == "self_ns" for column in table.columns):
        text = "width: time with inner calls, line at the bottom: without; "
        text += "the redder, the more of the time layers of its kind take themselves:"
    spans = "".join(
        f'<span><i class="heat{number}"></i>{level}</span>'
        for number, level in enumerate(_HEATS)
    )
    return f'<p class="scale">{text} {spans}</p>'


def _static_table(table: Table) -> str:
    columns = [c for c in table.columns if c.says_something and not c.is_detail]
    heads = _cell("th", table.corner, "text", "col")
    heads += "".join(_cell("th", c.title, c.unit, "col") for c in columns)
    written, lines = [[*_written(c, _ROWS)] for c in columns], []
    for row, label in enumerate(table.labels[:_ROWS]):
        indent = "\N{NO-BREAK SPACE}" * 2 * (table.depths[row] if table.depths else 0)
        texts = ((each[row], c.unit) for each, c in zip(written, columns, strict=True))
        cells = "".join(_cell("td", text, unit) for text, unit in texts)
        tone = f' class="{table.tones[row]}"' if table.tones else ""
        lines.append(
            f"<tr{tone}>{_cell('th', indent + label, 'text', 'row')}{cells}</tr>"
        )
    caption = ""
    if len(lines) < len(table.labels):
        caption = f"<caption>{len(lines)} of {len(table.labels)} rows</caption>"
    return (
        f'<div class="scroll" tabindex="0"><table class="rows">{caption}'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody>"
        "</table></div>"
    )


def _cell(tag: str, text: str, unit: Unit, scope: str = "") -> str:
    scoped = f' scope="{scope}"' if scope else ""
    aligned = ' class="text"' if unit == "text" else ""
    return f"<{tag}{scoped}{aligned}>{escaped(text)}</{tag}>"


_FORMATS: Final[Mapping[Unit, Callable[[Any], str]]] = {
    "bytes": lambda value: best_byte_format(round(value)),
    "count": "{:,}".format,
    "share": lambda value: f"{100 * value:.1f} %",
    "flops": best_count_format,
    "number": "{:.2f}".format,
    "text": str,
}


def _written(column: Column, rows: int) -> Iterator[str]:
    """The values of the first rows. The times of a column have one unit."""
    numbers = (abs(v) for v in column.values if isinstance(v, (int, float)))
    most = max(numbers, default=0) if column.unit == "ns" else 0
    for value in column.values[:rows]:
        if value is None or (value == 0 and not column.shows_zeros):
            yield ""
        elif isinstance(value, str):
            yield value
        elif column.unit == "ns":
            yield time_in_column(value, most)
        else:
            yield _FORMATS[column.unit](value)


def _times(table: Table) -> list[Column]:
    return [c for c in table.columns if c.unit == "ns" and not c.is_detail]


def _bars(table: Table) -> str:
    """A bar for each row, as long as its first column of times, with its numbers. In a
    stack, it is divided like the other columns of times, which are parts of that."""
    whole, *others = _times(table)
    parts = others if table.drawing == "stack" else []
    numbers = [whole, *(c for c in table.columns if c.unit == "share")]
    longest = max((float(v or 0) for v in whole.values), default=0) or 1
    rows = len(table.labels)
    ends, inner = ([[*_written(c, rows)] for c in each] for each in (numbers, parts))
    lines = []
    for row, label in enumerate(table.labels):
        if not whole.values[row]:
            continue  # it has others, in the table
        segments = "".join(
            _segment(part.title, value, f"{part.title} {written[row]}")
            for part, written in zip(parts, inner, strict=True)
            if (value := float(part.values[row] or 0)) > 0
        )
        is_slow = bool(table.tones) and table.tones[row] == "slow"
        mark, said = (' class="slow"', ", slow") if is_slow else ("", "")
        name = f"{table.corner} {label}{said}" if parts else label
        length = max(float(whole.values[row] or 0), 0) / longest
        values = "".join(f"<span>{escaped(each[row])}</span>" for each in ends)
        lines.append(
            f'<span{mark}>{escaped(name)}</span><span><span class="phases" '
            f'style="width:{100 * length:.2f}%">{segments or _segment(label)}</span>'
            f"</span><span>{values}</span>"
        )
    legend = "".join(
        f'<li><span class="dot {_colour(part.title)}"></span>{escaped(part.title)}</li>'
        for part in parts
    )
    bars = f'<div class="bars">{"".join(lines)}</div>'
    return f'{bars}<ul class="legend">{legend}</ul>' if parts else bars


def _segment(title: str, grow: float = 1, text: str = "") -> str:
    return (
        f'<span class="{_colour(title)}" style="flex-grow:{grow:.6g}" '
        f'title="{escaped(text)}"></span>'
    )


def _colour(title: str) -> str:
    """The CSS class with the colour of a phase, by the phase's title."""
    return "c-" + re.sub(r"[^a-z]+", "-", title.lower()).strip("-")
