"""Tables of what `bench_budgets.py` found, and what is aimed at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from results import Cell, Table

#: Modules with less than this share of the loop are not compared.
LEAST_SHARE: Final = 0.01
#: How much of a core others may use while the machine counts as quiet.
MOST_TAKEN: Final = 0.25

Clock = Literal["wall", "processor"]
Figures = Mapping[str, Any]


class Aim(NamedTuple):
    """At most: `cost` by that clock, what the report says off by `points`, and the
    shares of modules off by `shares`; all as parts of one."""

    cost: float
    points: float
    clock: Clock = "wall"
    shares: float = 0.05


MODEL: Final = {"default": Aim(0.05, 0.015), "0.01": Aim(0.015, 0.01)}
SHORT_CALLS: Final = {"default": Aim(0.07, 0.03)}
LIBRARY: Final = {"default": Aim(0.10, 0.03, "processor")}

#: By the names of the programs, and by budget: no others are measured.
AIMS: Final[Mapping[str, Mapping[str, Aim]]] = {
    **dict.fromkeys(("GPT-2 small", "ResNet", "LSTM", "transformers Llama"), MODEL),
    **dict.fromkeys(("100 x nn.Linear(8, 8)", "reinforcement learning"), SHORT_CALLS),
    **dict.fromkeys(("stable-baselines3", "Lightning", "fastai", "diffusers"), LIBRARY),
}


def of_aim(found: Figures, aim: Aim) -> dict[str, float]:
    """What was found, as a part of what the aim allows."""
    return {
        "cost": found[aim.clock][0] / aim.cost,
        "said": abs(found[f"said_off_{aim.clock}"][0]) / aim.points,
        "shares": found["shares_off"][0] / aim.shares,
    }


def verdict(found: Figures, aim: Aim) -> str:
    """Whether the aim is met, and of what is not, how many times that is too much."""
    parts = of_aim(found, aim)
    far = [f"{part} x {times:.1f}" for part, times in parts.items() if times > 1]
    return f"missed: {', '.join(far)}" if far else "met"


def rows_of(name: str, figures: Figures) -> list[list[Cell]]:
    """The lines of one program."""
    busy = sum(taken > MOST_TAKEN for taken in figures["cores_busy"])
    rows: list[list[Cell]] = []
    for variant in (*AIMS[name], "exact"):
        found, aim = figures["variants"][variant], AIMS[name].get(variant)
        clock = aim.clock if aim else "wall"
        error = f" \N{PLUS-MINUS SIGN} {100 * found['said_error']:.2f}"
        rows.append(
            [
                f"{name}, {figures['bare']['wall']:.0f} s",
                variant,
                _percent(*found["wall"]),
                _percent(*found["processor"]),
                _percent(found["said"][0]) + error,
                _percent(*found[f"said_off_{clock}"]),
                f"{found['measured']} of {found['steps']}" if found["steps"] else "all",
                _percent(*found["shares_off"]) if aim else "",
                verdict(found, aim) if aim else "",
                f"{busy} of {figures['rounds']}",
            ]
        )
    return rows


def _percent(middle: float, *ends: float) -> str:
    """With its spread, if that is something."""
    text = f"{100 * middle:.2f}"
    if len(set(ends)) < 2:
        return text
    low, high = (f"{100 * end:.2f}" for end in ends)
    return f"{text} ({low} to {high})"


def table(figures: Mapping[str, Figures]) -> Table:
    """The rows of all programs that were measured."""
    headers = [
        "program, bare",
        "budget",
        "cost, wall, %",
        "cost, processor, %",
        "report says, %",
        "off by, points",
        "measured steps",
        "shares off, %",
        "aim",
        "busy",
    ]
    rows = [
        row for name in AIMS if name in figures for row in rows_of(name, figures[name])
    ]
    note = (
        "Medians of the rounds (lowest to highest). Cost: what the command adds to the "
        "bare process in the same round. Off by: what the report says that measuring "
        "took, as a part of the program's time, less what the stopwatch says, by the "
        "clock of the aim. Shares off: of the module whose share of the loop is "
        f"furthest from that in the exact run, of those with {LEAST_SHARE:.0%} or "
        "more, in per cent of that share; there is one exact run alone. "
        f"Busy: rounds before which others used more than {MOST_TAKEN} of a core."
    )
    return Table("Whole programs within a budget", headers, rows, [note])


def aims_table() -> Table:
    """Programs with the same aims share rows."""
    headers = [
        "programs",
        "budget",
        "cost, %",
        "by the clock",
        "report off by, points",
        "shares off, %",
    ]
    groups: dict[tuple[str, Aim], list[str]] = {}
    for name, aims in AIMS.items():
        for each in aims.items():
            groups.setdefault(each, []).append(name)
    rows = [
        [
            ", ".join(names),
            variant,
            f"{100 * aim.cost:g}",
            aim.clock,
            f"{100 * aim.points:g}",
            f"{100 * aim.shares:g}",
        ]
        for (variant, aim), names in groups.items()
    ]
    return Table("What is aimed at, at most", headers, rows)
