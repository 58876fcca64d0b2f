"""Documents as text: shortened to one screen, or complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Block,
    Document,
    Facts,
    Table,
    Tip,
    Tips,
)
from torchprof_hooks.documents.render.table import Sheet, lines_of
from torchprof_hooks.documents.render.terminal import (
    Line,
    display_width,
    joined,
    printable,
    shorten,
    shorten_name,
    shorten_phrases,
    wrapped,
    written,
)
from torchprof_hooks.documents.words import plural, share_text

#: The most lines of tips on a screen; and where there is no room, though the first tip
#: is never cut, unless it has more than so many lines.
_MOST_TIPS: Final = 6
_FEWEST_TIPS: Final = 2
_LONGEST_TIP: Final = 5
#: The most lines of a fact or a note on a screen; and of a warning, or a faint fact.
_FACT: Final = 2
_LONGER_FACT: Final = 3
#: Names of answers are cut to so many characters before evidence is left out.
_SHORT_NAME: Final = 30
#: Other blocks of a screen are shortened to keep so many rows of the tree, or without
#: one, of the longest table.
_FEWEST_ROWS: Final = 6


def text_of(
    document: Document,
    *,
    width: int = 120,
    lines: int | None = None,
    colour: bool = False,
    unit: str = "auto",
    max_rows: int | None = None,
) -> str:
    """The document as text.

    width: characters in a line.
    lines: the most lines; to keep to them, the tree (without one, the longest table)
        gets fewer rows, then tables are left out, then tips are cut. None: no limit.
    colour: whether lines have the colours of a terminal.
    unit: the unit of times: "sec", "ms", "us", "ns", one for each table ("auto") or the
        best for each cell ("auto_foreach").
    max_rows: the most rows of each table.
    """
    sheet = Sheet(width, unit, max_rows, lines is not None)
    head = list(_head(document, sheet))
    blocks = [b for b in document.blocks if not getattr(b, "is_detail", False)]
    if blocks and isinstance(blocks[0], Answers):
        head += _answers(blocks[0], sheet)
        blocks = blocks[1:]
    if lines is None:
        shown = [_block(block, sheet) for block in blocks]
    else:
        shown = _fitting(blocks, sheet, lines - len(head) - 1)
    return joined([head, *shown], colour=colour)


def table_lines(
    table: Table,
    *,
    width: int,
    unit: str = "auto",
    max_rows: int | None = None,
) -> list[str]:
    """The lines of one table; for the parameters see `text_of`."""
    return written(lines_of(table, Sheet(width, unit, max_rows)))


def _head(document: Document, sheet: Sheet) -> Iterator[Line]:
    """The title, and the notes; the first note is in the title's line, if it fits."""
    title = printable(" ".join(document.title.split()))
    notes = [printable(note) for note in document.notes]
    if not (title or notes):  # as of a document below another one
        return
    line = "torchprof_hooks: " + ", ".join(filter(None, [title, *notes[:1]]))
    if display_width(line) <= sheet.width or not title:
        notes = notes[1:]
    else:
        line = f"torchprof_hooks: {title}"
    yield Line(shorten(line, sheet.width), "title")
    for note in notes:
        yield from map(Line, wrapped(note, sheet.width, most=_FACT * sheet.is_screen))


def _fitting(blocks: Sequence[Block], sheet: Sheet, lines: int) -> list[list[Line]]:
    """The blocks, shortened to so many lines, if that is possible: first, tables are
    left out from the end, then tips are cut."""
    shown = [_block(block, sheet) for block in blocks]

    def spare() -> int:
        return lines - sum(len(block) + 1 for block in shown if block) + 1

    sizes = {  # of tables: the largest is shortened: a tree, or the longest table
        n: (bool(block.depths), len(block.labels))
        for n, block in enumerate(blocks)
        if isinstance(block, Table) and block.drawing != "bars"
    }
    giving = max(sizes, key=sizes.__getitem__, default=None)
    if giving is not None:
        shown[giving] = _block(blocks[giving], sheet, _FEWEST_ROWS)
    for number in sorted(sizes.keys() - {giving}, reverse=True):
        if spare() < 0:
            shown[number] = []
    for number, block in enumerate(blocks):
        if isinstance(block, Tips) and spare() < 0:
            shown[number] = list(_tips(block.tips, sheet.width, _FEWEST_TIPS))
    if giving is not None:
        rows = max(_FEWEST_ROWS + spare(), 1)
        shown[giving] = _block(blocks[giving], sheet, rows)
    return shown


def _block(block: Block, sheet: Sheet, rows: int | None = None) -> list[Line]:
    """The lines of a block. rows: how many rows of a table there is room for."""
    if isinstance(block, Table):
        return lines_of(block, sheet, rows)
    if isinstance(block, Answers):
        return list(_answers(block, sheet))
    if isinstance(block, Tips):
        most = _MOST_TIPS if sheet.is_screen else 0
        return list(_tips(block.tips, sheet.width, most))
    return list(_facts(block, sheet))


def _answers(block: Answers, sheet: Sheet) -> Iterator[Line]:
    for warning in block.warnings:
        lines = wrapped(warning, sheet.width, most=_LONGER_FACT * sheet.is_screen)
        yield from (Line(line, "red") for line in lines)
    for number, answer in enumerate(block.shown):
        for line in _answer(answer, sheet):
            yield Line(line, "" if number else "hot")


def _answer(answer: Answer, sheet: Sheet) -> list[str]:
    """The lines of an answer. On a screen, that is one line, in which a long name
    loses its beginning before the evidence is cut, and evidence ends with a phrase."""
    width = sheet.width
    share = share_text(answer.share, answer.uncertainty)
    share = f", {share}" if share else ""
    evidence = printable(f": {answer.evidence}") if answer.evidence else ""
    if not sheet.is_screen:
        text = f"{answer.question}: {printable(answer.answer)}{share}{evidence}"
        return wrapped(text, width)
    name = printable(answer.answer)
    room = width - display_width(f"{answer.question}: {share}")
    least = min(display_width(name), _SHORT_NAME)
    evidence = shorten_phrases(evidence, room - least)
    name = shorten_name(name, room - display_width(evidence))
    return [shorten(f"{answer.question}: {name}{share}{evidence}", width)]


def _tips(tips: Sequence[Tip], width: int, most: int) -> Iterator[Line]:
    """As many tips as fit into `most` lines, and the first in any case; 0: all."""
    left = most or len(tips) * 1000
    for shown, tip in enumerate(tips):
        lines = wrapped(f"Tip: {tip}", width, "     ", _LONGEST_TIP * bool(most))
        # One line is kept for the note that there are more.
        if shown and len(lines) > left - (shown + 1 < len(tips)):
            yield Line(f"     ({plural(len(tips) - shown, 'more tip')})", "faint")
            return
        left -= len(lines)
        yield from (Line(line, "cyan") for line in lines)


def _facts(block: Facts, sheet: Sheet) -> Iterator[Line]:
    if block.title and block.lines:
        yield Line(shorten(printable(block.title), sheet.width), "title")
    most = (_LONGER_FACT if block.is_faint else _FACT) * sheet.is_screen
    for text in block.lines:
        for line in wrapped(text, sheet.width, most=most):
            yield Line(line, "faint" if block.is_faint else "")
