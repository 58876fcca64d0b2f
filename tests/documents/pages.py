"""A document with all that a page can show."""

from __future__ import annotations

from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Column,
    Document,
    Facts,
    Table,
    Tip,
    Tips,
)

MS, MB = 1_000_000, 1024**2
#: Net calls a (Linear) and b (Block), which calls b.a (Linear).
NAMES = ("Net", "Net.a", "Net.b", "Net.b.a", "(outside modules)")
OWN = (10 * MS, 70 * MS, 11 * MS, 49 * MS, 20 * MS)


def tree(names: tuple[str, ...] = NAMES) -> Table:
    """A tree of modules with times and bytes."""
    return Table(
        "tree.modules",
        "Modules",
        "module",
        labels=("Net", "a: Linear", "b: Block", "a: Linear", names[4]),
        names=names,
        depths=(0, 1, 1, 2, 0),
        tones=("heat0", "heat5", "heat0", "heat5", "heat0"),
        columns=[
            Column("class", "text", ("Net", "Linear", "Block", "Linear", "")),
            Column("calls", "count", (2, 2, 2, 4, 0), "calls"),
            Column("self", "ns", OWN, "self_ns"),
            Column("self %", "share", tuple(ns / (160 * MS) for ns in OWN)),
            Column(
                "retained", "bytes", (0, 1536, 0, 512, 0), "self_bytes", is_detail=True
            ),
            Column("layers", "text", ("Net", "a", "b", "a", ""), is_detail=True),
        ],
        drawing="tree",
    )


def rows(count: int, name: str = "rows.module") -> Table:
    """A long table."""
    numbers = range(count)
    return Table(
        name,
        name.partition(".")[2].title(),
        "module",
        labels=[f"Net.layers.{number}" for number in numbers],
        columns=[
            Column("self", "ns", [(7 * n % count) * MS + MS for n in numbers]),
            Column("kind", "text", ["Linear" if n % 2 else "ReLU" for n in numbers]),
        ],
        names=[f"Net.layers.{number}" for number in numbers],
    )


BARS = Table(
    "phases",
    "Phases",
    "phase",
    labels=("backward", "forward", "outside modules"),
    columns=[
        Column("loop", "ns", (100 * MS, 50 * MS, 10 * MS)),
        Column("%", "share", (0.625, 0.3125, 0.0625)),
        Column("start-up", "ns", (2 * MS, MS, 0)),
    ],
    drawing="bars",
)
STACK = Table(
    "steps",
    "A step of each rank",
    "rank",
    labels=("0", "1"),
    columns=[
        Column("step", "ns", (50 * MS, 40 * MS)),
        Column("forward", "ns", (20 * MS, 30 * MS)),
        Column("waiting", "ns", (30 * MS, 10 * MS)),
    ],
    tones=("", "slow"),
    drawing="stack",
)


#: Moments of a step: 5 MB at the peak.
COURSE = Table(
    "memory_of_step",
    "Memory in use during one step",
    "what ran",
    labels=(
        "(outside modules)",
        "Net.a: linear(8x4, 4x4)",
        "Net.b.a: linear(8x4, 4x4)",
        "Net.b.a: linear(8x4, 4x4)",
        "(optimizer) SGD",
    ),
    columns=[
        Column(
            "since the begin",
            "ns",
            tuple(n * MS for n in (0, 10, 20, 40, 79)),
            "since_ns",
        ),
        Column(
            "phase",
            "text",
            ("outside modules", *("forward",) * 2, "backward", "optimizers"),
            "phase",
        ),
        Column("temporary", "bytes", (0, MB, 0, MB, 0)),
        Column("activations", "bytes", (0, MB, 3 * MB, MB, 0)),
        Column("parameters", "bytes", (2 * MB,) * 5),
    ],
    drawing="areas",
    is_detail=True,
    section="Memory",
)

#: Steps over time, of which one took much longer than what is drawn.
STEPS = Table(
    "over_time",
    "Steps over time",
    "steps",
    labels=("step 2", "step 3", "step 4", "steps 5 to 8", "steps 9 to 12"),
    columns=[
        Column("mean", "ns", [n * MS for n in (10, 400, 10, 15, 10)], "mean_ns"),
        Column("longest", "ns", [n * MS for n in (10, 400, 10, 30, 10)], "longest_ns"),
        Column("slow", "text", ("", "step 3: data loading", "", "", ""), "slow"),
        Column("first", "count", (2, 3, 4, 5, 9), "first_step", is_detail=True),
        Column("steps", "count", (1, 1, 1, 4, 4), is_detail=True),
    ],
    tones=("", "slow", "", "slow", ""),
    drawing="steps",
    is_detail=True,
)


def document(*blocks: object, title: str = "train.py") -> Document:
    """One with a picture, bars, tables and sentences; or with other blocks."""
    usual = (
        Answers(
            [Answer("hottest", "Hottest module", "Net.a", 0.4, evidence="43.8 %")],
            warnings=["rank 3 is missing"],
        ),
        tree(),
        rows(3),
        rows(250, "rows.class"),
        BARS,
        STACK,
        Facts("memory", "", ["Most memory: 5.00MB"], section="Memory"),
        COURSE,
        STEPS,
        Tips([Tip("The loop waits for data", "give it more workers.")]),
        Facts("measured", "What was measured", ["all of it, 5 %"]),
    )
    return Document("profile", title, ["2.00sec wall"], blocks or usual)  # type: ignore[arg-type]
