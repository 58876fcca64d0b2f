"""A document as Markdown, for issues and for agents: short, and whole without a font of
fixed width."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Block,
    Document,
    Table,
    Tips,
)
from torchprof_hooks.documents.render.table import chosen_rows, filled
from torchprof_hooks.documents.render.terminal import printable
from torchprof_hooks.documents.words import share_text

#: The most rows of a table.
ROWS: Final = 10
#: What Markdown would take for more than text.
_MARKS: Final = re.compile(r"([\\`*<>|\[\]#]|(?<!\w)_|_(?!\w))")


def markdown_of(document: Document, most: int = ROWS) -> str:
    """The document as Markdown.

    most: rows of each table.
    """
    parts = [f"## torchprof_hooks: {_escaped(document.title) or 'a profile'}"]
    parts += map(_escaped, document.notes)
    for block in document.blocks:
        if not getattr(block, "is_detail", False):
            parts.append("\n".join(_lines(block, most)))
    return "\n\n".join(filter(None, parts))


def _lines(block: Block, most: int) -> Iterator[str]:
    if isinstance(block, Answers):
        yield from (f"- **{_escaped(warning)}**" for warning in block.warnings)
        yield from map(_answer, block.shown)
    elif isinstance(block, Table):
        yield from _table(block, most)
    elif isinstance(block, Tips):
        yield from (f"- Tip: {_escaped(str(tip))}" for tip in block.tips)
    else:
        yield from (f"- {_escaped(line)}" for line in block.lines)


def _answer(answer: Answer) -> str:
    share = share_text(answer.share, answer.uncertainty)
    found = ", ".join(filter(None, [_code(answer.answer), share]))
    evidence = f": {_escaped(answer.evidence)}" if answer.evidence else ""
    return f"- **{_escaped(answer.question)}**: {found}{evidence}"


def _table(table: Table, most: int) -> Iterator[str]:
    """The most important rows, under their full names."""
    if not table.labels:
        return
    shown = chosen_rows(table, most)
    columns = filled(table, shown, "auto_foreach")
    if table.title:
        yield from (f"### {_escaped(table.title)}", "")
    yield _row([_escaped(table.corner), *(_escaped(c.column.title) for c in columns)])
    yield _row(["---", *("--:" if c.is_number else "---" for c in columns)])
    names = table.names or table.labels
    for place, number in enumerate(shown):
        cells = (_escaped(each.texts[place + 1]) for each in columns)
        yield _row([_code(names[number]), *cells])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(name: str) -> str:
    """A name as code; words are none, nor what has a mark that would end it."""
    text = printable(name)
    is_words = " " in text and "(" not in text
    return _escaped(text) if is_words or {"`", "|"} & {*text} else f"`{text}`"


def _escaped(text: str) -> str:
    return _MARKS.sub(r"\\\1", printable(" ".join(text.split())))
