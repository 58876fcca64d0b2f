"""Documents as text: which rows, columns and blocks there is room for."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Block,
    Column,
    Document,
    Facts,
    Table,
    Tip,
    Tips,
    Unit,
    Value,
)
from torchprof_hooks.documents.render.table import chosen_rows
from torchprof_hooks.documents.render.terminal import (
    display_width,
    printable,
    shorten_name,
    shorten_phrases,
    takes_colour,
    width_of,
)
from torchprof_hooks.documents.render.text import table_lines, text_of


def tree(depths: Sequence[int], ranks: Sequence[int], **fields: object) -> Table:
    """Rows that are called as their positions."""
    labels = [f"r{n}" for n in range(len(depths))]
    column = Column("n", "count", list(range(len(depths))), shows_zeros=True)
    table = Table("t", "", "row", labels, [column], labels, depths, ranks)
    return replace(table, **fields)  # type: ignore[arg-type]


def one_column(unit: Unit, values: Sequence[Value], **fields: object) -> list[str]:
    """The texts of a column, without the header."""
    column = replace(Column("x", unit, values), **fields)  # type: ignore[arg-type]
    table = Table("t", "", "", [f"r{n}" for n in range(len(values))], [column])
    return [line[2:].strip() for line in table_lines(table, width=80)[1:]]


@pytest.mark.parametrize(
    ("unit", "values", "texts"),
    [
        ("ns", [1500, 2 * 10**6, 0], ["0.00ms", "2.00ms", ""]),
        ("ns", [-2_000_000, 10], ["-2.00ms", "0.00ms"]),
        ("bytes", [2048, -3_355_443, 0, None], ["2.00KB", "-3.20MB", "", ""]),
        ("count", [3, 0, None], ["3", "", ""]),
        ("share", [0.5, 0.0004, None], ["50.0 %", "0.0 %", ""]),
        ("flops", [6_290_000, 12], ["6.29M", "12.00"]),
        ("number", [1.234, 0.0], ["1.23", ""]),
        ("text", ["a\x1b[31m", ""], ["a\\x1b[31m", ""]),
    ],
)
def test_values_have_their_unit(
    unit: Unit, values: Sequence[Value], texts: list[str]
) -> None:
    assert one_column(unit, values) == texts


def test_times_of_a_table_have_one_unit_unless_each_is_to_have_its_own() -> None:
    columns = [Column("a", "ns", [10**9]), Column("b", "ns", [10**3])]
    table = Table("t", "", "", ["r"], columns)
    units = ("auto", "us", "auto_foreach")
    assert [table_lines(table, width=80, unit=unit)[1] for unit in units] == [
        "r  1.00sec  0.00sec",
        "r  1000000.00us  1.00us",
        "r  1.00sec  1.00us",
    ]


def test_rows_of_one_rank_come_together_with_those_around() -> None:
    rows = tree([0, 1, 2, 1, 2, 2], [0, 1, 2, 9, 3, 3])
    # Both rows of rank 3 or none: for one, and what is around them, there is room.
    for most, size in ((1, 1), (2, 2), (3, 3), (4, 3), (5, 3), (6, 6)):
        assert chosen_rows(rows, most) == [*range(size)]
    # Some of equal rows are better than none.
    assert chosen_rows(tree([0, 0, 0], [5, 5, 5]), 2) == [0, 1]


@given(st.data())
def test_any_choice_is_as_large_as_it_may_be_and_has_all_around(
    data: st.DataObject,
) -> None:
    size = data.draw(st.integers(1, 12))
    depths = [0]
    for _ in range(size - 1):
        depths.append(data.draw(st.integers(0, depths[-1] + 1)))
    ranks = data.draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))
    most = data.draw(st.integers(1, 14))
    rows = chosen_rows(tree(depths, ranks), most)

    assert 1 <= len(rows) <= most
    assert rows == sorted(set(rows))
    least = [n for n in range(size) if ranks[n] == min(ranks)]
    assert set(rows) & set(least)
    assert (len(rows) == size) >= (most >= size)
    lines = table_lines(tree(depths, ranks), width=80, max_rows=most)
    assert len(lines) == 1 + len(rows) + (len(rows) < size)


def test_columns_give_way_to_labels_in_their_order() -> None:
    columns = [
        Column(title, "count", [12345678], drop_order=drop_order)
        for title, drop_order in (("first", 1), ("second", 2), ("never", 0))
    ]
    table = Table("t", "Title", "", ["label " * 5], columns)
    for width, shown in (
        (80, "first second never"),
        (40, "second never"),
        (25, "never"),
    ):
        lines = table_lines(table, width=width)
        assert lines[1].split() == shown.split()
        assert max(map(len, lines)) <= width
        assert ("(no room for first)" in lines) == (width == 40)


def test_a_label_is_cut_where_the_table_would_be_too_wide() -> None:
    table = Table("t", "", "", ["x" * 200], [Column("n", "count", [7])])
    line = table_lines(table, width=60)[1]
    assert len(line) == 60
    assert line.endswith("x...  7")
    # A little is left of it in any case.
    assert table_lines(table, width=5)[1] == "xxxxxxxxx...  7"


# A screen


def screen_of(rows: int, tips: int = 0, flat: int = 0) -> Document:
    blocks: list[Block] = [
        Answers([Answer("q", "Question", "answer", 0.5, 0.01, "evidence")]),
        tree(range(rows), range(rows), left_out="", most=14),
        Table("f", "", "flat", ["f"] * flat, [Column("n", "count", [1] * flat)]),
        Tips([Tip(f"tip {n} " + "word " * 30) for n in range(tips)]),
        Facts("m", "", ["measured"], is_faint=True),
    ]
    return Document("profile", "Net", ["1 s", "9 steps"], blocks)


def parts(text: str) -> list[list[str]]:
    return [part.splitlines() for part in text.split("\n\n")]


def test_the_tree_gives_way_then_some_tips_then_tables_then_tips() -> None:
    document = screen_of(30, tips=4, flat=3)
    for lines in range(21, 40):
        text = text_of(document, lines=lines)
        assert len(text.splitlines()) <= lines
        rows = next(part for part in parts(text) if part[0].startswith("row"))
        assert len(rows) >= 1 + 6
    tight = text_of(document, lines=21)
    assert "(2 more tips)" in tight
    assert "flat" not in tight
    # As small as it gets.
    assert "(3 more tips)" in text_of(document, lines=5)
    assert len(text_of(document, lines=5).splitlines()) == 12


def test_without_a_tree_the_longest_table_gives_way() -> None:
    short, long = (
        Table("t", "", f"{size}", ["r"] * size, [Column("n", "count", [1] * size)])
        for size in (1, 30)
    )
    text = text_of(Document("comparison", "a", (), [short, long]), lines=20)
    assert len(text.splitlines()) == 20
    assert len(parts(text)[1]) == 2
    assert text.splitlines()[-1].startswith("... ")


def test_the_first_tip_is_never_cut() -> None:
    """What to do is at its end."""
    tips = Tips([Tip("claim " * 20, "do " * 40), Tip("another")])
    document = Document("profile", "Net", (), [tips])
    text = text_of(document, lines=5)
    assert "..." not in text
    assert text.endswith("(1 more tip)")


HOSTILE = (
    "x" * 500,
    "\N{CJK UNIFIED IDEOGRAPH-5B57}" * 300,
    "line\nend\r\ttab\x1b[31m\x07\u202ered",
    "e\N{COMBINING ACUTE ACCENT}" * 200,
    "\ud800",
    "% % %",
)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("width", [120, 80, 50])
def test_names_cannot_leave_their_place(name: str, width: int) -> None:
    columns = [Column("words", "text", [name, ""], drop_order=1)]
    table = Table(name, name, "c", [name, "b"], columns, notes=[name])
    blocks: list[Block] = [
        Answers([Answer("q", "Question", name, 0.1, None, "why")], [name]),
        replace(table, tones=["hot", ""]),
        Tips([Tip(name, name)]),
        Facts(name, name, [name]),
    ]
    document = Document(name, name, [name, name], blocks)
    for lines in (None, 30):
        text = text_of(document, width=width, lines=lines)
        assert text.replace("\n", "").isprintable()
        assert max(map(display_width, text.splitlines())) <= width
    assert len(text.splitlines()) <= 30


def test_a_qualified_name_is_cut_at_its_beginning() -> None:
    name = "WhisperForConditionalGeneration.model.encoder.layers.*.self_attn"
    assert shorten_name(name, len(name)) == name
    assert shorten_name(name, 30) == "...encoder.layers.*.self_attn"
    assert shorten_name(name, 29) == "...encoder.layers.*.self_attn"
    assert shorten_name(name, 28) == "...layers.*.self_attn"
    assert shorten_name(name, 10) == "...self..."
    call = f"{name}: linear(2x8, 4x8)"
    assert shorten_name(call, 76) == f"{name}: linear(..."
    assert shorten_name(call, 30) == "...*.self_attn: linear(2x8,..."
    assert shorten_name(f"{name}: 12 Attention", 30) == "...*.self_attn: 12 Attention"
    assert shorten_name("train.py:7 randint, relu", 20) == "train.py:7 randin..."
    answer = Answer("q", "Hottest module", name, 0.1, None, "2 Attention, forward 5 %")
    text = text_of(Document("", "", [], [Answers([answer])]), width=79, lines=9)
    assert text == (
        "Hottest module: ...model.encoder.layers.*.self_attn, 10.0 %: 2 Attention, ..."
    )


def test_a_list_is_cut_between_its_phrases() -> None:
    text = "most in a(1, 2), 3.00MB; other 4.00MB"
    assert shorten_phrases(text, len(text)) == text
    assert shorten_phrases(text, len(text) - 1) == "most in a(1, 2), 3.00MB, ..."
    assert shorten_phrases(text, 27) == "most in a(1, 2), ..."
    assert shorten_phrases(text, 14) == "most in a(1..."
    assert printable("a\nb") == "a\\nb"


# Colours


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")


def test_colours_change_nothing_else() -> None:
    document = screen_of(3, tips=1)
    times = Column("time", "ns", [3000, 1000])
    phases = Table("p", "", "phase", ["backward", "other"], [times], drawing="bars")
    document = replace(document, blocks=[*document.blocks, phases])
    painted = text_of(document, colour=True)
    assert "\x1b[1;33mQuestion" in painted
    assert painted.count("\x1b[0m") == painted.count("\x1b[") / 2
    bars = r"\x1b\[\d+;7m( +)\x1b\[0m"
    assert re.search(bars, painted)
    painted = re.sub(bars, lambda bar: "#" * len(bar[1]), painted)
    assert re.sub(r"\x1b\[[\d;]+m", "", painted) == text_of(document)
    hot = tree([0, 0], [0, 1], tones=["hot", "slow"])
    lines = text_of(Document("profile", "", [], [hot]), colour=True).split("\n")
    assert [line for line in lines if line.startswith("\x1b[1;33m")]


def test_what_a_stream_can_show(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    assert (takes_colour(Terminal()), width_of(Terminal())) == (True, 90)
    for stream in (io.StringIO(), closed, None):
        assert (takes_colour(stream), width_of(stream)) == (False, 120)
    settings = (
        ("NO_COLOR", "1", False),
        ("NO_COLOR", "", True),
        ("TERM", "dumb", False),
    )
    for variable, value, has_colour in settings:  # each with those before
        monkeypatch.setenv(variable, value)
        assert takes_colour(Terminal()) is has_colour
