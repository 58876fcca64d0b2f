"""The sections Class, Ops and Apply: the same time, by three groupings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from torchprof_hooks.profiles.names import MODULE_PHASES, Phase
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program import ProgramProfile
from torchprof_hooks.reports.table import plural

#: Grouping -> title, and what its rows are.
_TITLES: Final = {
    "class": ("Class", "Class name"),
    "function": ("Ops", "Function name"),
    "call": ("Apply", "Function call, by the module around it"),
}
_COLUMNS: Final = "{:>8} {:>7} {:>12} {:>15} {:>9} {:>8}  {}"


class Item(NamedTuple):
    """One line: what calls of one name took in one phase.

    applies: at how many places they are called.
    """

    name: str
    phase: Phase
    self_ns: int
    calls: int
    applies: int


def group_section(program: ProgramProfile, by: str, max_rows: int, width: int) -> str:
    """One section, the most expensive lines first.

    by: "class", "function" or "call".

    Example::

        Class
        ---
        <% time> <sum %> <apply time> <time per call> <#call> <#apply> <Class name>
           52.3%   52.3%       5.234s       1.026e-03s   5100       51 Linear backward
           ... (remaining 14 rows account for 3.10% (0.310s) of the runtime)
    """
    title, kind = _TITLES[by]
    profile = program.profile
    items = sorted(_items(profile, by), key=lambda item: (-item.self_ns, item.name))
    total_ns = sum(item.self_ns for item in items)
    if not total_ns:
        return f"{title}\n---\n   (nothing was measured here)"
    header = _COLUMNS.format(
        "<% time>",
        "<sum %>",
        "<apply time>",
        "<time per call>",
        "<#call>",
        "<#apply>",
        f"<{kind}>",
    )
    lines = [title, "---", *_sampling(program, by), header]
    lines += _lines(items[:max_rows], total_ns)
    lines = [line[:width] for line in lines]
    return "\n".join([*lines, _remainder(items[max_rows:], total_ns)])


def _sampling(program: ProgramProfile, by: str) -> Iterator[str]:
    steps = program.profile.steps
    if by != "class" and program.sampled_steps < steps:
        yield f"   (measured in {program.sampled_steps} of {plural(steps, 'step')})"


def _items(profile: Profile, by: str) -> Iterator[Item]:
    applies = _places(profile, by)
    kind = "module" if by == "class" else "function"
    for row in profile.rows(by):
        if row.kind != kind:
            continue
        for phase in MODULE_PHASES:
            totals = row.phases[phase]
            if totals.calls or totals.self_ns:
                yield Item(
                    row.name, phase, totals.self_ns, totals.calls, applies[row.name]
                )


def _places(profile: Profile, by: str) -> Counter[str]:
    """At how many places each is called, by the name of its row."""
    if by == "call":
        return Counter({row.name for row in profile.rows(by)})
    finer = "module" if by == "class" else "call"
    return Counter(row.class_name for row in profile.rows(finer))


def _lines(items: Iterable[Item], total_ns: int) -> Iterator[str]:
    sum_ns = 0
    for item in items:
        sum_ns += item.self_ns
        per_call = f"{item.self_ns / item.calls / 1e9:.3e}s" if item.calls else "-"
        phase = "" if item.phase == "forward" else f" {item.phase}"
        yield _COLUMNS.format(
            f"{100 * item.self_ns / total_ns:.1f}%",
            f"{100 * sum_ns / total_ns:.1f}%",
            f"{item.self_ns / 1e9:.3f}s",
            per_call,
            item.calls,
            item.applies,
            item.name + phase,
        )


def _remainder(items: list[Item], total_ns: int) -> str:
    rest_ns = sum(item.self_ns for item in items)
    return (
        f"   ... (remaining {plural(len(items), 'row')} account for "
        f"{100 * rest_ns / total_ns:.2f}% ({rest_ns / 1e9:.3f}s) of the runtime)"
    )
