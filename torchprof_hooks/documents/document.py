"""What a report says, as data: numbers are raw, and renderers give them units.

A document is built once (`documents.build`) and rendered as text, as a page, as JSON or
as CSV (`documents.render`): whatever is in it is in all four.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

#: What a number is of, and so how it is written: "ns" (nanoseconds), "bytes", "count"
#: (a whole number), "share" (a part of 1, written in per cent), "flops" (operations, or
#: operations per second), "number" (two decimals), "text".
Unit = Literal["ns", "bytes", "count", "share", "flops", "number", "text"]

#: What a cell of a table holds; None: nothing is known, or there is nothing to say.
Value: TypeAlias = float | int | str | None

#: How a row is to be seen: by the share of the time that layers of its kind spend
#: themselves ("heat0" to "heat5"), by how it changed ("slower1", "slower2" if strongly,
#: "faster1", "faster2", "new", "same"), or since it is what was looked for ("hot": the
#: hottest module, "slow": a slow rank).
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

    title: as people read it.
    unit: of its values.
    values: one for each row.
    name: as programs read it, with the unit: "self_ns"; by default the title.
    leaves: where there is no room, columns with 1 are left out first, then those with
        2, and so on; 0: never.
    shows_zeros: whether a 0 is written, or left blank as None is.
    is_detail: whether only pages and programs get it, and no table of a text.
    """

    title: str
    unit: Unit
    values: Sequence[Value]
    name: str = ""
    leaves: int = 0
    shows_zeros: bool = False
    is_detail: bool = False


#: What a table is drawn as, where that is possible: "tree" (an icicle), "bars" (one bar
#: a row, as long as the first column of times), "stack" (a bar for each row, divided
#: as its columns of times), or as nothing but a table.
Drawing = Literal["", "tree", "bars", "stack"]


@dataclass(frozen=True)
class Table:
    """Rows with labels on the left, and columns.

    name: as programs read it: "modules", "functions".
    title: what is above it, "" for nothing.
    corner: the header of the labels.
    labels: of the rows, as people read them in the table: in a tree, without what the
        row around says already.
    columns: all of them.
    names: full names of the rows, where labels are shorter; () where they are not.
    depths: of rows in a tree, from 0; a row comes after the one around it; () of
        others.
    ranks: of each row, how important it is: where there is room for n rows, those with
        the n smallest are shown, and in a tree those around them. Rows of one rank are
        shown all or not at all, so that chance does not choose among equals. () if rows
        are in that order.
    most: how many rows a text shows, unless it is asked for more; 0: all.
    tones: see `Tone`; () if all are plain.
    left_out: what is said of rows for which there is no room, with ``{count}`` and, if
        `shares` is given, ``{share}``: "{count} more rows, {share}"; "" for nothing.
    shares: of each row, its part of the whole: what `left_out` adds up.
    notes: what is said below it: a legend, or what is not in it.
    drawing: see `Drawing`.
    is_detail: whether only pages and programs get it, and no text.
    """

    name: str
    title: str
    corner: str
    labels: Sequence[str]
    columns: Sequence[Column]
    names: Sequence[str] = ()
    depths: Sequence[int] = ()
    ranks: Sequence[int] = ()
    most: int = 0
    tones: Sequence[Tone] = ()
    left_out: str = "{count} more rows"
    shares: Sequence[float] = ()
    notes: Sequence[str] = ()
    drawing: Drawing = ""
    is_detail: bool = False


class Answer(NamedTuple):
    """The answer to a question that everybody asks.

    name: the question as programs read it: "hottest_module".
    question, answer: in a few words.
    share: of the time that the answer is about, None if it is about none.
    uncertainty: how far the share may be off, None if that is not known.
    evidence: what the answer rests on, in words.
    numbers: the same as raw numbers, by names with units.
    next_step: what to call or to run next, "" if nothing.
    """

    name: str
    question: str
    answer: str
    share: float | None = None
    uncertainty: float | None = None
    evidence: str = ""
    numbers: Mapping[str, Value] = MappingProxyType({})
    next_step: str = ""


@dataclass(frozen=True)
class Answers:
    """What comes first. warnings: what has to be known before all answers."""

    answers: Sequence[Answer]
    warnings: Sequence[str] = ()
    name: str = "answers"
    title: str = ""


class Tip(NamedTuple):
    """What is the case, and what to do about it, if that is not plain."""

    claim: str
    remedy: str = ""

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
    """Sentences, one a line: what was measured, and what is not as usual.

    numbers: the same for programs, by names with units.
    is_faint: whether they matter less than all else.
    is_detail: as for `Table`.
    """

    name: str
    title: str
    lines: Sequence[str]
    numbers: Mapping[str, Value] = field(default_factory=dict)
    is_faint: bool = False
    is_detail: bool = False


Block: TypeAlias = Answers | Table | Tips | Facts


@dataclass(frozen=True)
class Document:
    """A report.

    kind: what it is about: "profile", "program", "comparison" or "ranks".
    title: what was run, in a line.
    notes: how long it took, its steps and the like: lines below the title.
    blocks: in the order in which they are read.
    numbers: what is true of the whole run, for programs, by names with units.
    """

    kind: str
    title: str
    notes: Sequence[str] = ()
    blocks: Sequence[Block] = ()
    numbers: Mapping[str, object] = field(default_factory=dict)
