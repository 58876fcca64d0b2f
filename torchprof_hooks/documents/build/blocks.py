"""One ordered list of all blocks: which documents have each, and what makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeAlias

from torchprof_hooks.documents.build import (
    answers,
    exit_report,
    facts,
    page_tables,
    tables,
)
from torchprof_hooks.documents.build.compilation import compilation_blocks
from torchprof_hooks.documents.build.device import (
    idle_blocks,
    kernel_lines,
    kernel_tables,
)
from torchprof_hooks.documents.build.exit_report import ExitLayout
from torchprof_hooks.documents.build.memory import (
    failure_of,
    failure_table,
    growth_table,
    peak_table,
)
from torchprof_hooks.documents.build.memory_step import (
    peak_tree,
    savings_table,
    step_course,
)
from torchprof_hooks.documents.build.module_table import folded_modules
from torchprof_hooks.documents.build.operations import (
    communication,
    flop_tree,
    memory_tree,
)
from torchprof_hooks.documents.build.rows import tables_of_rows
from torchprof_hooks.documents.build.rules import find_tips
from torchprof_hooks.documents.build.slow_steps import slow_table, steps_over_time
from torchprof_hooks.documents.build.tables import PlacedNode, placed_nodes
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import (
    Block,
    Document,
    Facts,
    Table,
    Tips,
)
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Grouping, SortBy

#: The documents of a profile: one screen; the text, and the page, with all tables; the
#: report of a whole program, with Theano's tables; for programs; for issues and agents.
Level: TypeAlias = Literal["screen", "full", "page", "exit", "json", "markdown"]
Levels: TypeAlias = Set[Level]


@dataclass(frozen=True)
class Asked:
    """What a document is asked for.

    view: what it is about.
    level: which document it is.
    sort_by: by which column tables are sorted, the largest first.
    by: the grouping of the rows for programs; None: all usual ones.
    layout: how much of the report of a whole program is shown.
    whole: the report of a whole program: what its tables are about, where that is not
        the loop.
    without: the names of blocks that it is not to have.
    """

    view: View
    level: Level
    sort_by: SortBy | None = None
    by: Grouping | None = None
    layout: ExitLayout = field(default_factory=ExitLayout)
    whole: View | None = None
    without: Sequence[str] = ()

    @property
    def shown(self) -> View:
        """What tables of times are about."""
        return self.whole or self.view

    @property
    def of(self) -> str:
        """What tables of times are about, in words."""
        return self.view.of_all if self.whole else self.view.of_shown

    @property
    def is_text(self) -> bool:
        """Whether few columns and rows have room."""
        return self.level in ("full", "exit", "screen")

    @cached_property
    def nodes(self) -> Sequence[PlacedNode]:
        """The tree of modules as rows."""
        return placed_nodes(self.shown.tree, self.sort_by)


# What makes them


def _answers(asked: Asked) -> Iterator[Block]:
    """A page names no next step: its tips do, and what was not measured."""
    found = answers.answers(asked.view)
    if asked.level == "page":
        shown = [each._replace(next_step="") for each in found.answers]
        found = replace(found, answers=shown)
    yield found


def _modules(asked: Asked) -> Iterable[Block]:
    """The tree of modules: of a text, the few columns that it has room for."""
    if asked.is_text:
        shown = asked.shown.shown
        return [tables.module_tree(shown, asked.nodes, asked.sort_by, asked.of)]
    return page_tables.trees(asked.view)


def _rows(asked: Asked) -> Iterable[Block]:
    """The rows by class, function and call: of a text, those of functions, as it has
    the modules as a tree."""
    if not asked.is_text:
        return page_tables.row_tables(asked.view)
    if not asked.shown.shown.has_functions:
        return ()
    sort_by: SortBy = asked.sort_by or "self"
    return tables.function_tables(asked.shown.shown, sort_by, asked.of)


def _phases(asked: Asked) -> Iterator[Block]:
    found = answers.phases(asked.view)
    title = "" if asked.is_text else f"Phases{asked.view.of_shown}"
    yield replace(found, title=title)


def _layers(asked: Asked) -> Iterator[Block]:
    found = folded_modules(asked.view)
    if asked.level == "json":
        title = f"Layers{asked.view.of_shown}, those of a kind together"
        found = replace(found, title=title)
    yield found


def _idle(asked: Asked) -> Iterable[Block]:
    if asked.level == "exit":
        return idle_blocks(asked.view, asked.layout.n_apply)
    return idle_blocks(asked.view)


def _kernels(asked: Asked) -> Iterable[Block]:
    return kernel_tables(asked.view, all_rows=not asked.is_text)


def _lines(asked: Asked) -> Iterator[Block]:
    found = answers.places(asked.view)
    if not asked.is_text:
        where = asked.view.of_shown and ", in the loop"
        found = replace(found, title=f"Lines of the program{where}", corner="line")
    yield found


def _tips(asked: Asked) -> Iterator[Block]:
    tips = find_tips(asked.view)
    if tips or asked.level != "exit":
        yield Tips(tips)
    else:
        yield Facts("tips", "Tips", ["None: nothing that is looked for was found."])


def _compilation(asked: Asked) -> Iterable[Block]:
    is_whole = asked.level in ("page", "json") or asked.layout.every_pass
    return compilation_blocks(asked.view.program.compilation, full=is_whole)


def _peak(asked: Asked) -> Iterator[Block]:
    """The course of a step, and who had what, as pictures; what would lower it."""
    profile = asked.view.profile
    if not asked.is_text:
        yield from step_course(profile)
        yield from peak_tree(profile)
    yield from peak_table(profile)
    yield from savings_table(asked.view)


def _memory_of_calls(asked: Asked) -> Iterator[Block]:
    profile = asked.shown.shown
    if profile.memory:
        sort_by, of = asked.sort_by, asked.of
        yield memory_tree(profile, profile.memory, asked.nodes, sort_by, of)


class Entry(NamedTuple):
    """A line of the list.

    name: what it is.
    make: makes its blocks; none if there is nothing to say.
    levels: the documents that have it.
    section: the title of the part of a page that it is in, with others next to it.
    """

    name: str
    make: Callable[[Asked], Iterable[Block]]
    levels: Levels
    section: str = ""


_REPORTS: Final[Levels] = {"full", "page", "exit"}
_SCREEN: Final[Levels] = {"screen"}
_EXIT: Final[Levels] = {"exit"}
#: What the full text and the page have is the same.
_WHOLE: Final[Levels] = {"full", "page"}
_DATA: Final[Levels] = {*_WHOLE, "json"}
_READ: Final[Levels] = {*_SCREEN, *_DATA}
_TABLES: Final[Levels] = {*_DATA, *_EXIT}

#: All blocks, in the order in which they are read. Tables for which a screen has no
#: room are left out from its end.
BLOCKS: Final[Sequence[Entry]] = (
    Entry("answers", _answers, {*_READ, "markdown"}),
    Entry("tips", _tips, {"page", "json", "markdown"}),
    Entry(
        "program",
        lambda a: [exit_report.totals(a.shown, a.of, a.layout.include_overhead)],
        _EXIT,
    ),
    Entry("phases", _phases, _READ),
    Entry("memory at the failure", lambda a: failure_table(a.view.profile), _SCREEN),
    Entry("layers", _layers, {"screen", "full", "json", "markdown"}),
    Entry("idle devices", _idle, _READ),
    Entry("kernels in a line", lambda a: kernel_lines(a.view), _SCREEN),
    Entry("hot functions", lambda a: [answers.hot_functions(a.view)], _SCREEN),
    Entry("lines", _lines, _READ),
    Entry("rates", lambda a: [facts.rates(a.view)], _READ),
    Entry("tips", _tips, {"screen", "full"}),
    Entry("functions", lambda a: exit_report.functions(a.shown.shown), _EXIT),
    Entry(
        "Class, Ops, Apply",
        lambda a: exit_report.tables(a.shown.shown, a.layout),
        _EXIT,
    ),
    Entry("modules", _modules, _REPORTS),
    Entry("rows", _rows, _WHOLE),
    Entry("rows", lambda a: tables_of_rows(a.view, a.by), {"json"}),
    Entry(
        "operations",
        lambda a: flop_tree(a.shown.shown, a.nodes, a.sort_by, a.of),
        _REPORTS,
    ),
    Entry("steps", lambda a: steps_over_time(a.view.profile), _DATA, "Steps"),
    Entry("slow steps", lambda a: slow_table(a.view), _DATA, "Steps"),
    Entry(
        "communication", lambda a: communication(a.view.profile.collectives), _TABLES
    ),
    Entry("compilation", _compilation, _TABLES),
    Entry("idle devices", _idle, _EXIT),
    Entry("kernels", _kernels, _TABLES),
    Entry("memory", lambda a: exit_report.memory_facts(a.view.profile), _EXIT),
    Entry("failure", lambda a: failure_table(a.view.profile), _TABLES, "Memory"),
    Entry("growth", lambda a: growth_table(a.view.profile), _TABLES, "Memory"),
    Entry("peak", _peak, _TABLES, "Memory"),
    Entry("memory of calls", _memory_of_calls, _REPORTS, "Memory"),
    Entry("tips", _tips, _EXIT),
    Entry(
        "measuring",
        lambda a: [facts.measuring_block(a.view)],
        {"screen", "markdown"},
    ),
    Entry("measuring", lambda a: [page_tables.measured(a.view)], _DATA),
)
#: What a screen has if memory has run out: where the time went matters less.
ON_FAILURE: Final = ("answers", "memory at the failure", "layers", "tips", "measuring")
#: What goes before all else then, in this order.
_FIRST: Final = ("answers", "memory_at_failure", "tips", "memory", "checkpointing")
#: What tells of memory below the answers.
MEMORY: Final = ("memory", "failure", "growth", "peak", "memory of calls")


def document(asked: Asked) -> Document:
    """The document that is asked for."""
    view, level = asked.view, asked.level
    if level == "exit":  # no title: the screen above has it
        return Document("program", "", [], _memory_first(view.profile, _made(asked)))
    numbers = page_tables.numbers_of(view) if level in ("page", "json") else {}
    if view.shown.is_empty:
        last = (e for e in BLOCKS if e.name == "measuring" and level in e.levels)
        said = [block for entry in last for block in entry.make(asked)]
        nothing = facts.nothing(view)
        blocks = [*said, nothing] if level == "screen" else [nothing, *said]
        return facts.document_of(view, blocks, numbers)
    blocks = _memory_first(view.profile, _made(asked))
    return facts.document_of(view, blocks, numbers)


def _memory_first(profile: ProfileData, blocks: Iterable[Block]) -> list[Block]:
    """The blocks; those about memory first, if it ran out."""
    if failure_of(profile) is None:
        return [*blocks]

    def rank(block: Block) -> int:
        name = "memory" if block.name.startswith("memory") else block.name
        name = block.name if block.name in _FIRST else name
        return _FIRST.index(name) if name in _FIRST else len(_FIRST)

    return sorted(blocks, key=rank)


def _made(asked: Asked) -> Iterator[Block]:
    without = {*asked.without}
    is_failed = failure_of(asked.view.profile) is not None
    for entry in BLOCKS:
        if asked.level not in entry.levels or entry.name in without:
            continue
        if asked.level == "screen" and is_failed and entry.name not in ON_FAILURE:
            continue
        for block in entry.make(asked):
            if entry.section and isinstance(block, (Table, Facts)):
                yield replace(block, section=entry.section)
            else:
                yield block
