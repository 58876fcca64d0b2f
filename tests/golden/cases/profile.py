"""Reports of one profile: screens, a full report, what a page gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tests.documents.found import page_document
from tests.golden import sample
from torchprof_hooks.documents.document import Answers, Block, Facts, Table
from torchprof_hooks.documents.report import rows_report

#: Rows of each table of a page, of which all have the same columns.
_ROWS: Final = 3


def _page(name: str) -> str:
    """The document of a page, with a few rows of each table."""
    document = page_document(sample(name))
    lines = [document.kind, document.title, *document.notes, ""]
    lines += [f"{name} = {value}" for name, value in document.numbers.items()]
    return "\n".join((*lines, *blocks_of(document.blocks)))


def _section(name: str, title: str) -> str:
    """A section of a page."""
    blocks = page_document(sample(name)).blocks
    inside = [block for block in blocks if getattr(block, "section", "") == title]
    return "\n".join((title, *blocks_of(inside)))


def _named(name: str, block: str) -> str:
    """The blocks of a page that have this name."""
    blocks = page_document(sample(name)).blocks
    return "\n".join(blocks_of(each for each in blocks if each.name == block))


def blocks_of(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        yield from ("", f"[{block.name}] {block.title}".rstrip(), *_content(block))


def _content(block: Block) -> Iterator[str]:
    if isinstance(block, Table):
        yield from _table(block)
    elif isinstance(block, Answers):
        for answer in block.answers:
            yield from (f"{key}: {value}" for key, value in answer._asdict().items())
    elif isinstance(block, Facts):
        yield from block.lines
        yield from (f"{name} = {value}" for name, value in block.numbers.items())
    else:
        yield from map(str, block.tips)


def _table(table: Table) -> Iterator[str]:
    shown = range(min(len(table.labels), _ROWS))
    yield f"{len(table.labels)} rows, drawn as {table.drawing or 'a table'}"
    yield f"{table.corner}: {[table.labels[n] for n in shown]}"
    for name in ("names", "depths", "tones", "importance", "notes"):
        if values := getattr(table, name):
            yield f"  {name}: {list(values[:_ROWS])}"
    for column in table.columns:
        values = [column.values[n] for n in shown]
        detail = " (detail)" * column.is_detail
        yield f"  {column.title} [{column.name}, {column.unit}]{detail}: {values}"


CASES: Final[dict[str, Callable[[], str]]] = {
    "markdown.txt": lambda: sample("char_lm_functions").to_markdown(),
    "screen.txt": lambda: sample("char_lm").report(),
    "screen_functions.txt": lambda: sample("char_lm_functions").report(width=100),
    "screen_program.txt": lambda: sample("exit_report").report(),
    "screen_idle.txt": lambda: sample("device_idle").report(),
    "full_device.txt": lambda: sample("device_idle").report(full=True, max_rows=9),
    "full_report.txt": lambda: sample("char_lm_functions").report(
        full=True, max_rows=12
    ),
    "screen_some_steps.txt": lambda: sample("some_steps").report(),
    "rows_by_class.txt": lambda: rows_report(sample("some_steps"), "class", max_rows=8),
    "page.txt": lambda: _page("char_lm"),
    "page_device.txt": lambda: _named("device_idle", "kernels"),
    "full_slow_steps.txt": lambda: sample("slow_steps").report(full=True, max_rows=5),
    "page_steps.txt": lambda: _section("slow_steps", "Steps"),
    "page_memory.txt": lambda: _section("char_lm_functions", "Memory"),
}
