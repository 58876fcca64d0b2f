"""Documents as JSON, for programs: raw numbers, units in the names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, Final

from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Block,
    Document,
    Facts,
    Table,
    Tips,
    Value,
)
from torchprof_hooks.version import __version__

#: Version of what this writes (see docs/json.md): it changes when a name in it goes, or
#: means something else.
SCHEMA: Final = 1


def json_of(document: Document) -> str:
    """The document with its answers first: everybody's questions need no table.

    See docs/json.md for its schema.
    """
    blocks = document.blocks
    answers = [b for b in blocks if isinstance(b, Answers)]
    content = {
        "schema": SCHEMA,
        "torchprof_hooks": __version__,
        "kind": document.kind,
        "title": document.title,
        "notes": list(document.notes),
        "answers": {a.name: _answer(a) for block in answers for a in block.answers},
        "warnings": [warning for block in answers for warning in block.warnings],
        "numbers": _plain(document.numbers),
        **_named(blocks, Facts, "facts", _facts),
        **_named(blocks, Table, "tables", _table),
        "tips": [
            tip._asdict() for b in blocks if isinstance(b, Tips) for tip in b.tips
        ],
    }
    return json.dumps(content, indent=1, allow_nan=False)


def _named(
    blocks: Iterable[Block], kind: type, name: str, as_json: Callable[[Any], Any]
) -> dict[str, Any]:
    """All blocks of a kind by their names; of one name, a list."""
    found: dict[str, Any] = {}
    for block in blocks:
        if isinstance(block, kind):
            found.setdefault(block.name, []).append(as_json(block))
    alone = {
        key: every[0] if len(every) == 1 else every for key, every in found.items()
    }
    return {name: alone}


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "question": answer.question,
        "answer": answer.answer,
        "share": answer.share,
        "uncertainty": answer.uncertainty,
        "evidence": answer.evidence,
        "numbers": _plain(answer.numbers),
        "next_step": answer.next_step,
    }


def _facts(block: Facts) -> dict[str, Any]:
    return {"lines": list(block.lines), "numbers": _plain(block.numbers)}


def _table(table: Table) -> dict[str, Any]:
    """One record for each row."""
    names = table.names or table.labels
    columns = [(each.name or each.title, each.values) for each in table.columns]
    rows = []
    for place, name in enumerate(names):
        row: dict[str, Any] = {"name": name}
        if table.depths:
            row["depth"] = table.depths[place]
        row |= {column: _number(values[place]) for column, values in columns}
        rows.append(row)
    return {"title": table.title, "rows": rows, "notes": list(table.notes)}


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    return {
        name: value if isinstance(value, (list, dict)) else _number(value)  # type: ignore[arg-type]
        for name, value in values.items()
    }


def _number(value: Value) -> Value:
    """Without what JSON cannot say."""
    return None if isinstance(value, float) and not isfinite(value) else value
