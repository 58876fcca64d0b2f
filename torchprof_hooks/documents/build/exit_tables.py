"""The tables Class, Ops and Apply of a program, as in Theano's report.

They show the same time by three groupings. In each, optimizers, waiting for data,
torch.compile and the rest of the program have rows, too, so that all three add up to
the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from torchprof_hooks.documents.document import Block, Column, Facts, Table
from torchprof_hooks.profiles.cells import call_site
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.many_shapes import with_common_names
from torchprof_hooks.profiles.names import MODULES_NAME, Grouping, Kind, Phase

#: Grouping -> the title of its section, and the header of its rows.
SECTIONS: Final[Mapping[Grouping, tuple[str, str]]] = {
    "class": ("Class", "<Class name>"),
    "function": ("Ops", "<Function name>"),
    "call": ("Apply", "<Function call, by the module around it>"),
}
#: Kinds of rows whose calls are shown even if they took no time.
_CALLED: Final = ("module", "function")


class _Item(NamedTuple):
    """A row of a table: the calls of one name in one phase.

    phase: "" for forward, or if the name has no other.
    runs: what runs the calls: "C", "Py", "C/Py".
    places: at how many places they are made.
    rate: GFLOP/s; None if that is not known.
    """

    name: str
    phase: str
    self_ns: int
    calls: int = 0
    runs: str = ""
    places: int = 0
    rate: float | None = None


def table_by(profile: ProfileData, by: Grouping, most: int) -> Block:
    """What takes the time, by one grouping, the most first.

    most: as many rows are shown.
    """
    title, corner = SECTIONS[by]
    name = title.lower()
    items = sorted(_items(profile, by), key=lambda i: (-i.self_ns, i.name, i.phase))
    whole_ns = sum(item.self_ns for item in items)
    if not whole_ns:
        return Facts(name, title, ["(nothing was measured here)"])
    shares = [item.self_ns / whole_ns for item in items]
    means = [item.self_ns / item.calls if item.calls else None for item in items]
    own, sums = [item.self_ns for item in items], [*accumulate(shares)]
    columns = [
        Column("<phase>", "text", [item.phase for item in items], "phase"),
        Column("<% time>", "share", shares, "share", shows_zeros=True),
        Column("<sum %>", "share", sums, "sum_of_shares", 3, shows_zeros=True),
        Column("<apply time>", "ns", own, "self_ns", shows_zeros=True),
        Column("<time per call>", "ns", means, "mean_self_ns", 4),
        Column("<type>", "text", [item.runs for item in items], "type", 2),
        Column("<#call>", "count", [item.calls for item in items], "calls"),
        Column("<#apply>", "count", [item.places for item in items], "places", 1),
        Column("<GFLOP/s>", "number", [i.rate for i in items], "gflop_per_s", 5),
    ]
    return Table(
        name,
        title,
        corner,
        [item.name for item in items],
        columns,
        most=most,
        left_out="(remaining {count} rows account for {share} of the runtime)",
        shares=shares,
    )


def _items(profile: ProfileData, by: Grouping) -> Iterator[_Item]:
    """All rows of one grouping, in no order."""
    if by == "call":
        profile = with_common_names(profile)
    runs, places = _implementations(profile, by), _places(profile, by)
    of_modules: Counter[Phase] = Counter()
    for row in profile.rows(by):
        for phase, totals in row.phases.items():
            if by == "call" and row.kind == "module":
                of_modules[phase] += totals.self_ns
            elif totals.self_ns or (totals.calls and row.kind in _CALLED):
                is_known = totals.flops and totals.self_ns
                yield _Item(
                    row.name,
                    "" if _is_plain(phase, row.kind) else phase,
                    totals.self_ns,
                    totals.calls,
                    "/".join(sorted(runs.get(row.name, ()))),
                    places[row.name],
                    totals.flops / totals.self_ns if is_known else None,
                )
    for phase, self_ns in of_modules.items():
        if self_ns:
            shown = "" if _is_plain(phase, "outside") else phase
            yield _Item(MODULES_NAME, shown, self_ns)


def _is_plain(phase: Phase, kind: Kind) -> bool:
    """Whether a phase is not named: it is forward, or the only one of its row."""
    return phase in ("forward", kind) or (phase == "outside" and kind != "module")


def _places(profile: ProfileData, by: Grouping) -> Counter[str]:
    """At how many places each is called, by the name of its row. Places are: for a
    class, its modules; for a function, its call sites; for a call site, the different
    chains of calls to it."""
    infos = profile.modules
    kind = "module" if by == "class" else "function"
    paths = {path for path, _ in profile.cells if infos[path[-1]].kind == kind}
    if by == "call":
        return Counter(call_site(path, infos) for path in paths)
    if by == "class":
        return Counter(infos[name].class_name for name in {path[-1] for path in paths})
    sites = {(call_site(path, infos), infos[path[-1]].class_name) for path in paths}
    return Counter(function for _, function in sites)


def _implementations(profile: ProfileData, by: Grouping) -> Mapping[str, set[str]]:
    """What runs the calls of each row."""
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
