"""The text report: a profile as a tree in a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from textwrap import fill
from typing import Final, NamedTuple

from tabulate import tabulate

from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.tree import Node
from torchprof_hooks.reports.units import check_unit, format_times

_NARROWEST_NAME: Final = 12


class _Column(NamedTuple):
    """A column of times. It is left out where it would be empty."""

    header: str
    time_ns: Callable[[Node], int]


def _inclusive(phase: Phase) -> Callable[[Node], int]:
    return lambda node: node.phases[phase].cumulative_ns


def _own(phase: Phase) -> Callable[[Node], int]:
    """Own time; nothing where there are no inner calls: it would be the same."""
    return lambda node: node.phases[phase].self_ns if node.children else 0


def _device(node: Node) -> int:
    return sum(totals.device_cumulative_ns for totals in node.phases.values())


_COLUMNS: Final = (
    _Column("forward", _inclusive("forward")),
    _Column("self", _own("forward")),
    _Column("backward", _inclusive("backward")),
    _Column("self", _own("backward")),
    _Column("recompute", _inclusive("recompute")),
    _Column("self", _own("recompute")),
    _Column("device", _device),
    _Column("total", lambda row: row.cumulative_ns),
)


def render(
    profile: Profile,
    unit: str = "auto",
    *,
    width: int = 120,
    max_rows: int = 40,
) -> str:
    """The report as text, for `Profiler.print_report`.

    Raises:
        ValueError: unknown unit, or no rows to show.

    Example::

        torchprof_hooks: 2.00sec wall, 10 steps of 200.00ms, 97.5 % attributed, ...

        module            calls  forward     self  backward      self    total      %
        ----------------------------------------------------------------------------
        Net                  10  1.00sec  50.00ms  500.00ms   10.00ms  1.50sec   75.0
          body: Linear       10 ...
    """
    check_unit(unit)
    if max_rows < 1:
        raise ValueError(f"max_rows must be positive, but is {max_rows}")
    header = fill(_header(profile), width, subsequent_indent="  ")
    if profile.is_empty:
        return f"{header}\n\nNo module was called: there is nothing to report."
    nodes = list(profile.tree().walk())[1:]
    shown = _select(nodes, max_rows)
    parts = [header, "", _table(profile, shown, unit, width)]
    parts += (
        fill(line, width, subsequent_indent="  ")
        for line in _footer(profile, nodes, shown)
    )
    return "\n".join(parts)


def _header(profile: Profile) -> str:
    wall, step = format_times(
        [profile.wall_ns, profile.wall_ns / max(profile.steps, 1)], "auto_foreach"
    )
    facts = [f"{wall} wall"]
    if profile.steps:
        facts.append(f"{_plural(profile.steps, 'step')} of {step}")
    attributed = _percent(profile.attributed_ns, profile.wall_ns)
    facts.append(f"{attributed} in modules and optimizers")
    overhead = _percent(profile.overhead_ns, profile.wall_ns)
    facts.append(f"measuring took about {overhead}")
    if profile.aborted_calls:
        facts.append(f"{_plural(profile.aborted_calls, 'call')} ended by an exception")
    return "torchprof_hooks: " + ", ".join(facts)


_Placed = tuple[int, Node]


def _select(nodes: list[_Placed], max_rows: int) -> list[_Placed]:
    """The most expensive nodes, in their places, with those of their kind.

    Layers of one kind (``blocks.0.norm``, ``blocks.1.norm``, ...) are shown all or not
    at all, so that chance does not choose among equals, unless there are too many of
    them for any to be shown otherwise. A node costs no less than those below it and
    comes before them, so with a node, those around it are shown as well.
    """
    kinds: dict[str, list[int]] = {}
    for position, (_, node) in enumerate(nodes):
        kinds.setdefault(_NUMBER.sub(".*", node.name), []).append(position)
    costs = [node.cumulative_ns for _, node in nodes]
    ranked = sorted(kinds.values(), key=lambda k: (-max(costs[n] for n in k), k[0]))
    shown: list[int] = []
    for kind in ranked:
        if len(shown) + len(kind) > max_rows:
            break
        shown += kind
    if not shown:
        shown = sorted(range(len(nodes)), key=lambda n: (-costs[n], n))[:max_rows]
    return [nodes[n] for n in sorted(shown)]


#: The number of a layer in a qualified name.
_NUMBER: Final = re.compile(r"\.\d+(?=\.|$)")


def _table(profile: Profile, shown: list[_Placed], unit: str, width: int) -> str:
    columns = [
        column
        for column, header in zip(_COLUMNS, _headers(), strict=True)
        if any(column.time_ns(node) for _, node in shown) or header == "forward"
    ]
    values = [[column.time_ns(node) for column in columns] for _, node in shown]
    texts = iter(format_times([value for row in values for value in row], unit))
    rows = [
        [
            str(node.calls) if node.calls else "",
            *(next(texts) if value else _skip(texts) for value in row),
            f"{100 * node.cumulative_ns / max(profile.wall_ns, 1):.1f}",
        ]
        for (_, node), row in zip(shown, values, strict=True)
    ]
    headers = ["calls", *(column.header for column in columns), "%"]
    taken = sum(
        2 + max(len(row[n]) for row in [headers, *rows]) for n in range(len(headers))
    )
    room = max(width - taken, _NARROWEST_NAME)
    names = [_shorten(label, room) for label in _labels(shown)]
    body = [[name, *row] for name, row in zip(names, rows, strict=True)]
    # Headers as a row: tabulate pads real ones by two more spaces.
    lines = tabulate(
        [["module", *headers], *body],
        tablefmt="plain",
        colalign=("left", *["right"] * len(headers)),
        disable_numparse=True,
        preserve_whitespace=True,  # the indentation shows the depth
    ).splitlines()
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _headers() -> Iterator[str]:
    return (column.header for column in _COLUMNS)


def _skip(texts: Iterator[str]) -> str:
    next(texts)
    return ""


def _labels(shown: list[_Placed]) -> Iterator[str]:
    names: list[str] = [""]  # of the nodes around, by depth
    for depth, node in shown:
        yield _label(depth, node, names[depth - 1])
        names[depth:] = [node.name]


def _label(depth: int, node: Node, parent_name: str) -> str:
    """The name, without what the line of the parent shows already, and the class."""
    indent = "  " * (depth - 1)
    marks = " [compiled]" * node.compiled + " [shared]" * bool(node.aliases)
    name = node.name.removeprefix(parent_name + ".")
    if node.kind != "module" or name == node.class_name:
        return indent + name + marks
    return f"{indent}{name}: {node.class_name}{marks}"


def _shorten(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 3] + "..."


def _footer(
    profile: Profile, nodes: list[_Placed], shown: list[_Placed]
) -> Iterable[str]:
    hidden_ns = sum(node.self_ns for _, node in nodes)
    hidden_ns -= sum(node.self_ns for _, node in shown)
    if len(nodes) > len(shown):
        rest = _plural(len(nodes) - len(shown), "more row")
        yield f"... {rest}, {_percent(hidden_ns, profile.wall_ns)}"
    shared = {node.name: node.aliases for _, node in shown if node.aliases}
    for name, aliases in sorted(shared.items()):
        yield f"[shared] {name} is also {', '.join(aliases)}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _percent(part_ns: float, whole_ns: float) -> str:
    return f"{100 * part_ns / whole_ns:.1f} %" if whole_ns else "0.0 %"
