"""Markdown takes no name for more than text."""

from __future__ import annotations

from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Block,
    Column,
    Document,
    Facts,
    Table,
    Tip,
    Tips,
)
from torchprof_hooks.documents.render.markdown import markdown_of


def test_names_are_no_markup() -> None:
    name = "a|b`*<c>\n_d_ [e](f)"
    table = Table("t", "", name, [name], [Column(name, "text", [name])])
    answers = Answers([Answer("a", name, name, evidence=name)], [name])
    blocks: list[Block] = [
        answers,
        table,
        Tips([Tip(name, name)]),
        Facts("f", "", [name]),
    ]
    text = markdown_of(Document("profile", name, [name], blocks))
    written = r"a\|b\`\*\<c\> \_d\_ \[e\](f)"
    lines = text.splitlines()
    assert lines[0] == f"## torchprof_hooks: {written}"
    assert f"| {written} | {written} |" in lines
    assert f"- Tip: {written}: {written}" in lines


def test_a_table_has_its_most_important_rows() -> None:
    rows = [f"row {n}" for n in range(30)]
    numbers = [*range(30)]
    ranks = [29 - n for n in numbers]
    found = Table(
        "t", "T", "r", rows, [Column("n", "count", numbers)], importance=ranks
    )
    lines = markdown_of(Document("profile", "", [], [found])).splitlines()
    assert [line for line in lines if "row" in line] == [
        f"| row {n} | {n} |" for n in range(20, 30)
    ]
