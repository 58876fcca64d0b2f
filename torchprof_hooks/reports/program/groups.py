"""The sections Class, Ops and Apply: the same time, by three groupings.

What is neither a module nor a function (optimizers, waiting for data, torch.compile,
the rest of the program) has lines of its own in each: all three add up to the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from torchprof_hooks.profiles.cells import call_site
from torchprof_hooks.profiles.names import MODULES_NAME, Grouping, Kind, Phase
from torchprof_hooks.profiles.operations.shape_ranges import with_ranges
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.program_profile import ProgramProfile, part_of
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports.table import plural

#: Grouping -> what its rows are.
_ROWS: Final = {
    "class": "Class name",
    "function": "Function name",
    "call": "Function call, by the module around it",
}
#: Kinds of rows whose calls are shown even if they took no time.
_CALLED: Final = ("module", "function")
_COLUMNS: Final = "{:>8} {:>7} {:>12} {:>15} {:>8} {:>9} {:>8} {:>9}  {}"


class Tables(NamedTuple):
    """The source of tables.

    part: name of an outermost module, "" for all of the program.
    """

    program: ProgramProfile
    part: str = ""

    def profile(self, by: Grouping, *, of_functions: bool) -> Profile:
        """All steps, as if modules, or functions, had been measured in each."""
        program = self.program
        profile = program.by_function if of_functions else program.by_module
        if self.part:
            profile = part_of(profile, self.part)
        return with_ranges(profile) if by == "call" else profile

    def function_rows(self, by: Grouping) -> tuple[Row, ...]:
        """The rows of functions; those of the whole program are made once."""
        profile = self.profile(by, of_functions=True)
        if profile is self.program.by_function:
            return self.program.function_rows(by)
        return profile.rows(by)


class Item(NamedTuple):
    """One line: what calls of one name took in one phase. The phase is a part of the
    name, unless it is forward.

    implementation: what runs them: "C", "Py", "C/Py".
    applies: at how many places they are called.
    rate: GFLOP/s, 0.0 if that is not known.
    """

    name: str
    self_ns: int
    calls: int = 0
    implementation: str = ""
    applies: int = 0
    rate: float = 0.0


def group_lines(tables: Tables, by: Grouping, max_rows: int) -> Iterator[str]:
    """The lines of one section, the most expensive first.

    by: "class", "function" or "call".
    """
    items = sorted(items_of(tables, by), key=lambda item: (-item.self_ns, item.name))
    total_ns = sum(item.self_ns for item in items)
    if not total_ns:
        yield "   (nothing was measured here)"
        return
    yield _COLUMNS.format(
        "<% time>",
        "<sum %>",
        "<apply time>",
        "<time per call>",
        "<type>",
        "<#call>",
        "<#apply>",
        "<GFLOP/s>",
        f"<{_ROWS[by]}>",
    )
    yield from _lines(items[:max_rows], total_ns)
    yield from _remainder(items[max_rows:], total_ns)


def items_of(tables: Tables, by: Grouping) -> Iterator[Item]:
    """All lines of one grouping, in no order."""
    profile = tables.profile(by, of_functions=by != "class")
    rows = tables.function_rows(by)
    rates = _rates(rows)
    applies = _places(profile, by)
    implementations = _implementations(profile, by)
    of_modules: Counter[Phase] = Counter()
    for row in profile.rows(by) if by == "class" else rows:
        for phase, totals in row.phases.items():
            if by == "call" and row.kind == "module":
                of_modules[phase] += totals.self_ns
            elif totals.self_ns or (totals.calls and row.kind in _CALLED):
                yield Item(
                    _title(row.name, row.kind, phase),
                    totals.self_ns,
                    totals.calls,
                    "/".join(sorted(implementations.get(row.name, ()))),
                    applies[row.name],
                    rates.get((row.name, phase), 0.0),
                )
    for phase, self_ns in of_modules.items():
        if self_ns:
            yield Item(_title(MODULES_NAME, "outside", phase), self_ns)


def _rates(rows: Iterable[Row]) -> Mapping[tuple[str, Phase], float]:
    """GFLOP/s of rows in a phase, where that is known: of functions, and so of the
    modules that call them."""
    return {
        (row.name, phase): totals.flops / totals.self_ns
        for row in rows
        for phase, totals in row.phases.items()
        if totals.flops and totals.self_ns
    }


def _title(name: str, kind: Kind, phase: Phase) -> str:
    """The name with the phase, unless that is forward or the only one of the row."""
    is_plain = phase in ("forward", kind) or (phase == "outside" and kind != "module")
    return name if is_plain else f"{name} {phase}"


def _places(profile: Profile, by: Grouping) -> Counter[str]:
    """At how many places each is called, by the name of its row: modules of a class,
    call sites of a function, chains of modules around a call site."""
    infos = profile.modules
    kind = "module" if by == "class" else "function"
    paths = {path for path, _ in profile.cells if infos[path[-1]].kind == kind}
    if by == "call":
        return Counter(call_site(path, infos) for path in paths)
    if by == "class":
        return Counter(infos[name].class_name for name in {path[-1] for path in paths})
    sites = {(call_site(path, infos), infos[path[-1]].class_name) for path in paths}
    return Counter(function for _, function in sites)


def _implementations(profile: Profile, by: Grouping) -> Mapping[str, set[str]]:
    """The implementations that run the calls of each row."""
    infos = profile.modules
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path, _ in profile.cells:
        info = infos[path[-1]]
        name = call_site(path, infos) if by == "call" else info.class_name
        if info.kind == "module":
            found[name].add("compiled" if info.compiled else "Py")
        elif info.implementation:
            found[name].add(info.implementation)
    return found


def _lines(items: Iterable[Item], total_ns: int) -> Iterator[str]:
    sum_ns = 0
    for item in items:
        sum_ns += item.self_ns
        yield _COLUMNS.format(
            f"{100 * item.self_ns / total_ns:.1f}%",
            f"{100 * sum_ns / total_ns:.1f}%",
            f"{item.self_ns / 1e9:.3f}s",
            f"{item.self_ns / item.calls / 1e9:.3e}s" if item.calls else "-",
            item.implementation or "-",
            item.calls,
            item.applies or "-",
            f"{item.rate:.2f}" if item.rate else "-",
            item.name,
        )


def _remainder(items: list[Item], total_ns: int) -> Iterator[str]:
    if not items:
        return
    rest_ns = sum(item.self_ns for item in items)
    verb = "accounts" if len(items) == 1 else "account"
    yield (
        f"   ... (remaining {plural(len(items), 'row')} {verb} for "
        f"{100 * rest_ns / total_ns:.2f}% ({rest_ns / 1e9:.3f}s) of the runtime)"
    )
