"""Documents as JSON, for programs: raw numbers, units in the names. docs/json.md and
docs/report.schema.json say what is in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, Final

from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Document,
    Facts,
    Table,
    Tips,
)

#: The name of the format, and its version. The version changes if a name is removed, or
#: changes its meaning, but not if one is added.
SCHEMA: Final = "torchprof_hooks report"
VERSION: Final = 1

#: The depth of the rows of tables: from here on, all is in one line.
_ROW_DEPTH: Final = 4


def json_of(document: Document) -> str:
    """The document as JSON in ASCII, with the answers first, so that common questions
    need no table.

    Example::

        {
         "schema": "torchprof_hooks report",
         "version": 1,
         "kind": "profile",
         "title": "Net",
         "answers": {
          "bottleneck": {
           "question": "Hottest module",
           "answer": "Net.blocks.*.mlp",
           "share": 0.41,
           ...
         "tables": {
          "modules": {
           "title": "Modules by phase, of the loop",
           "rows": [
            {"name": "Net", "phase": "forward", "calls": 10, "self_ns": 1000000, ...},
            ...
    """
    blocks = document.blocks
    answers = [block for block in blocks if isinstance(block, Answers)]
    tables = [block for block in blocks if isinstance(block, Table)]
    tips = [block for block in blocks if isinstance(block, Tips)]
    facts = [block for block in blocks if isinstance(block, Facts)]
    content = {
        "schema": SCHEMA,
        "version": VERSION,
        "kind": document.kind,
        "title": document.title,
        "answers": {a.name: _answer(a) for block in answers for a in block.answers},
        "warnings": [warning for block in answers for warning in block.warnings],
        "notes": list(document.notes),
        "numbers": _plain(document.numbers),
        "tables": _by_name((table.name, _table(table)) for table in tables),
        "tips": [tip._asdict() for block in tips for tip in block.tips],
        "facts": _by_name((block.name, _facts(block)) for block in facts),
    }
    return _written(content)


def _by_name(found: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Blocks by their names. The second block of a name gets ``NAME_2``, and so on."""
    named: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for name, block in found:
        counts[name] += 1
        named[name if counts[name] == 1 else f"{name}_{counts[name]}"] = block
    return named


def _answer(answer: Answer) -> dict[str, Any]:
    found = answer._asdict()
    del found["name"], found["json_only"]
    return {**_plain(found), "numbers": _plain(answer.numbers)}


def _facts(block: Facts) -> dict[str, Any]:
    return {"lines": list(block.lines), "numbers": _plain(block.numbers)}


def _table(table: Table) -> dict[str, Any]:
    columns: dict[str, Iterable[Any]] = {"name": table.names or table.labels}
    if table.depths:
        columns["depth"] = table.depths
    columns |= {
        each.name or each.title: map(_number, each.values)
        for each in table.columns
        if each.says_something
    }
    names = tuple(columns)
    rows = zip(*columns.values(), strict=True)
    return {
        "title": table.title,
        "rows": [dict(zip(names, row, strict=True)) for row in rows],
        "notes": list(table.notes),
    }


def _plain(numbers: Mapping[str, object]) -> dict[str, object]:
    return {name: _number(value) for name, value in numbers.items()}


def _number(value: object) -> object:
    """The value; None for an infinite number, which JSON does not have: it stands for
    one that is not known."""
    return None if isinstance(value, float) and not isfinite(value) else value


#: Made once: a table has a value for each row.
_encoded: Final = json.JSONEncoder(allow_nan=False).encode


def _written(value: Any, depth: int = 0) -> str:
    """Indented JSON with a line for each member, but one line for a row of a table."""
    if depth == _ROW_DEPTH or not value or not isinstance(value, (dict, list)):
        return _encoded(value)
    line, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, list):
        members = [_written(each, depth + 1) for each in value]
        return f"[{line}{f',{line}'.join(members)}{end}]"
    members = [f"{_encoded(k)}: {_written(v, depth + 1)}" for k, v in value.items()]
    return f"{{{line}{f',{line}'.join(members)}{end}}}"
