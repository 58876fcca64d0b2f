"""A report as data, with raw numbers, to which renderers give units.

`documents.build` makes a document once; `documents.render` renders it as text, as a
page, as JSON or as CSV: whatever is in it is in all four.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

#: The unit of a number, and so how it is written: "ns" (nanoseconds), "bytes", "count"
#: (a whole number), "share" (a part of 1, written in per cent), "flops" (operations, or
#: operations per second), "number" (two decimals), "text".
Unit = Literal["ns", "bytes", "count", "share", "flops", "number", "text"]

#: The value of a cell of a table; None: not known, or nothing to say.
Value: TypeAlias = float | int | str | None

#: How a row is highlighted: by the share of own time of layers of its kind ("heat0" to
#: "heat5"), by how it changed ("slower1", "slower2" if strongly, "faster1", "faster2",
#: "new", "same"), or as the answer ("hot": the hottest module, "slow": a slow rank).
Tone = Literal[
    "",
    "hot",
    "slow",
    "heat0",
    "heat1",
    "heat2",
    "heat3",
    "heat4",
    "heat5",
    "slower1",
    "slower2",
    "faster1",
    "faster2",
    "new",
    "same",
]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    title: its name for people.
    unit: the unit of its values.
    values: one for each row.
    name: its name for programs, with the unit: "self_ns"; by default the title.
    drop_order: columns with lower numbers are dropped first where there is no room for
        all; 0: never.
    shows_zeros: whether a 0 is written, or left blank as None is.
    is_detail: whether only pages and programs get it, not texts.
    """

    title: str
    unit: Unit
    values: Sequence[Value]
    name: str = ""
    drop_order: int = 0
    shows_zeros: bool = False
    is_detail: bool = False

    @property
    def says_something(self) -> bool:
        """Whether pages and programs get it: not if all its numbers are 0 (unless it
        shows zeros), as that would claim that they were measured."""
        return self.unit == "text" or self.shows_zeros or any(self.values)


#: How a table is drawn, where that is possible: "tree" (an icicle), "bars" (a bar for
#: each row, as long as the first column of times), "stack" (a bar for each row, divided
#: like its columns of times), "areas" (rows are moments, and columns of bytes areas
#: above each other), "steps" (rows are stretches of steps, one after the other); "":
#: not at all.
Drawing = Literal["", "tree", "bars", "stack", "areas", "steps"]


@dataclass(frozen=True)
class Table:
    """Rows with labels on the left, and columns.

    name: its name for programs: "modules", "functions".
    title: the line above it; "" for none.
    corner: the header of the labels.
    labels: the names of the rows for people: in a tree, without what the row around
        says already.
    columns: all columns.
    names: the full names of the rows, where labels are shorter; else ().
    depths: of a tree, the depths of the rows, from 0; a row comes after the one around
        it; () without a tree.
    importance: a number for each row: where there is room for n rows, those with the n
        smallest numbers are printed, and in a tree those around them. Of the rows of
        one number, all are printed or none, so that chance does not choose among
        equals. () if rows are in order of importance.
    most: how many rows a text shows by default; 0: all.
    tones: see `Tone`; () if no row is highlighted.
    left_out: the line about rows for which there is no room, with ``{count}`` and, if
        `shares` is given, ``{share}``: "{count} more rows, {share}"; "" for none.
    shares: the share of each row in the whole, which ``{share}`` adds up.
    notes: lines below it: a legend, or what is not in it.
    drawing: see `Drawing`.
    is_detail: whether only pages and programs get it, not texts; if it is drawn, pages
        show the picture, and the rows only on demand.
    section: the title of the part of a page that it is in, with others next to it.
    """

    name: str
    title: str
    corner: str
    labels: Sequence[str]
    columns: Sequence[Column]
    names: Sequence[str] = ()
    depths: Sequence[int] = ()
    importance: Sequence[int] = ()
    most: int = 0
    tones: Sequence[Tone] = ()
    left_out: str = "{count} more rows"
    shares: Sequence[float] = ()
    notes: Sequence[str] = ()
    drawing: Drawing = ""
    is_detail: bool = False
    section: str = ""


class Answer(NamedTuple):
    """The answer to a question that everybody asks.

    name: the question's name for programs: "hottest_module".
    question, answer: a few words each.
    share: the share of the time that the answer is about; None if it is about no time.
    uncertainty: how far the share may be off; None if that is not known.
    evidence: what the answer rests on, in words.
    numbers: the evidence as raw numbers, by names with units.
    next_step: what to call, to run or to change next; "" for nothing.
    json_only: whether only programs get it: it is a duplicate of another answer.
    """

    name: str
    question: str
    answer: str
    share: float | None = None
    uncertainty: float | None = None
    evidence: str = ""
    numbers: Mapping[str, Value] = MappingProxyType({})
    next_step: str = ""
    json_only: bool = False


@dataclass(frozen=True)
class Answers:
    """The first block. warnings: what readers must know before the answers."""

    answers: Sequence[Answer]
    warnings: Sequence[str] = ()
    name: str = "answers"
    title: str = ""

    @property
    def shown(self) -> Sequence[Answer]:
        """The answers for people."""
        return [answer for answer in self.answers if not answer.json_only]


class Tip(NamedTuple):
    """What is the case; and what to do about it.

    rule: the name of the rule that says so (see docs/advice.md).
    """

    claim: str
    remedy: str = ""
    rule: str = ""

    def __str__(self) -> str:
        """Both as one paragraph."""
        return f"{self.claim}: {self.remedy}" if self.remedy else self.claim


@dataclass(frozen=True)
class Tips:
    """Changes that the numbers suggest."""

    tips: Sequence[Tip]
    name: str = "tips"
    title: str = "Tips"


@dataclass(frozen=True)
class Facts:
    """Sentences, one a line: what was measured, and what is unusual.

    numbers: the same for programs, by names with units.
    is_faint: whether they matter less than all else.
    is_detail, section: as for `Table`.
    """

    name: str
    title: str
    lines: Sequence[str]
    numbers: Mapping[str, Value] = field(default_factory=dict)
    is_faint: bool = False
    is_detail: bool = False
    section: str = ""


Block: TypeAlias = Answers | Table | Tips | Facts


@dataclass(frozen=True)
class Document:
    """A report.

    kind: what it is about: "profile", "program", "comparison" or "ranks".
    title: what was run, in a line.
    notes: lines below the title: how long it took, its steps and the like.
    blocks: its parts, in the order in which they are read.
    numbers: numbers of the whole run, for programs, by names with units.
    """

    kind: str
    title: str
    notes: Sequence[str] = ()
    blocks: Sequence[Block] = ()
    numbers: Mapping[str, object] = field(default_factory=dict)
