"""What is in a document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from torchprof_hooks.documents.build.blocks import Asked, document
from torchprof_hooks.documents.build.exit_report import ExitLayout
from torchprof_hooks.documents.build.view import View, view_of
from torchprof_hooks.documents.document import (
    Answers,
    Block,
    Document,
    Facts,
    Table,
    Tips,
)
from torchprof_hooks.profiles.data import ProfileData

B = TypeVar("B", Answers, Facts, Table, Tips)


def page_document(profile: ProfileData) -> Document:
    return document(Asked(view_of(profile), "page"))


def exit_document(
    profile: ProfileData, n_ops: int = 20, ignore_first_call: bool = False
) -> Document:
    loop = view_of(profile)
    whole = None if ignore_first_call else View(loop.profile, loop.profile)
    return document(Asked(loop, "exit", layout=ExitLayout(n_ops), whole=whole))


def block(found: Document | Iterable[Block], kind: type[B], name: str = "") -> B:
    """The only block of a kind, or the one of that kind and name."""
    blocks = found.blocks if isinstance(found, Document) else found
    [only] = [b for b in blocks if isinstance(b, kind) and name in ("", b.name)]
    return only


def table_in(found: Document | Iterable[Block], name: str) -> Table:
    return block(found, Table, name)


def column(table: Table, name: str) -> list[Any]:
    """The values of the column of this name or title."""
    [found] = (c for c in table.columns if name in (c.name, c.title))
    return [*found.values]


def values(table: Table, name: str) -> dict[str, Any]:
    """The same, by the names of the rows, or else by what they are called."""
    return dict(zip(table.names or table.labels, column(table, name), strict=True))
