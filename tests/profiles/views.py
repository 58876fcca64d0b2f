"""What tests look at in a profile."""

from __future__ import annotations

from typing import Any

from torchprof_hooks import Profile
from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.tree import Node


def numbers(rows: tuple[Row, ...]) -> list[tuple[str, int, int, int]]:
    return [(row.name, row.calls, row.self_ns, row.cumulative_ns) for row in rows]


def one_row(profile: Profile, name: str, by: Grouping = "module") -> Row:
    (row,) = [row for row in profile.rows(by) if row.name == name]
    return row


def sketch(node: Node) -> dict[str, Any]:
    """What is in a node: names with own and cumulative times."""
    return {f"{n.name} {n.self_ns} {n.cumulative_ns}": sketch(n) for n in node.children}
