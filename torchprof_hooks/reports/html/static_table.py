"""Tables as they are without a script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports import table
from torchprof_hooks.reports.html.escaping import escaped
from torchprof_hooks.reports.row_table import inclusive_device_time, inclusive_time
from torchprof_hooks.reports.table import Table, TextColumn, percent
from torchprof_hooks.reports.units import best_time

_TIMES: Final = (
    table.Column("forward", inclusive_time("forward")),
    table.Column("backward", inclusive_time("backward")),
    table.Column("recompute", inclusive_time("recompute")),
    table.Column[Row]("total", lambda row: row.cumulative_ns),
    table.Column[Row]("own", lambda row: row.self_ns),
    table.Column("device", inclusive_device_time),
)
#: Rows that are shown without a script, which would show as many as one asks for.
_ROWS: Final = 50


def html_table(caption: str, shown: Table) -> str:
    """A table, its texts escaped, in a box that it may be wider than."""
    (corner, *labels), columns = shown
    headers = _cell("th", corner, True, "col") + "".join(
        _cell("th", column.header, column.is_words, "col") for column in columns
    )
    body = "".join(
        "<tr>"
        + _cell("th", label, True, "row")
        + "".join(_cell("td", c.texts[line], c.is_words) for c in columns)
        + "</tr>"
        for line, label in enumerate(labels)
    )
    return (
        f'<div class="scroll"><table class="rows"><caption>{escaped(caption)}</caption>'
        f"<thead><tr>{headers}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def module_table(all_rows: Sequence[Row], wall_ns: int) -> str:
    """Rows of modules, optimizers, data and so on, by falling own time."""
    rows = sorted(all_rows, key=lambda row: (-row.self_ns, row.name))
    shown = rows[:_ROWS]
    times = table.filled_columns(_TIMES, shown, lambda ns: [*map(best_time, ns)])
    columns = [
        TextColumn("class", [row.class_name or row.kind for row in shown], True),
        TextColumn("calls", [str(row.calls) for row in shown]),
        *times,
        TextColumn("own %", [percent(row.self_ns, wall_ns) for row in shown]),
    ]
    caption = f"Modules: {len(shown)} of {len(rows)} rows"
    return html_table(caption, Table(["module", *(row.name for row in shown)], columns))


def _cell(tag: str, text: str, is_words: bool, scope: str = "") -> str:
    scoped = f' scope="{scope}"' if scope else ""
    aligned = ' class="text"' if is_words else ""
    return f"<{tag}{scoped}{aligned}>{escaped(text)}</{tag}>"


def definition_list(facts: Iterable[tuple[str, str]]) -> str:
    """Names and what is said of them, escaped."""
    pairs = ((f"<dt>{escaped(n)}</dt>", f"<dd>{escaped(t)}</dd>") for n, t in facts)
    return f"<dl>{''.join(chain.from_iterable(pairs))}</dl>"
