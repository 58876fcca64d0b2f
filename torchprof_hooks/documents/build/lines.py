"""The lines of the program that call modules, and functions outside of these."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from torchprof_hooks.profiles.data import ProfileData

#: How many of the modules and functions that a line calls are named.
_NAMES_SHOWN: Final = 3
#: The words before the line in `ModuleInfo.place`.
_NO_PLACE: Final = re.compile(r"(called first|made) at ")


def lines_of_program(
    profile: ProfileData, *, modules: bool = True
) -> tuple[Counter[str], dict[str, list[str]]]:
    """The time of each line of the program, and the names of its modules and functions.

    modules: whether lines count that call modules.
    """
    outermost: Counter[str] = Counter()
    for (path, _), totals in profile.cells.items():
        outermost[path[0]] += totals.self_ns
    times: Counter[str] = Counter()
    names: defaultdict[str, list[str]] = defaultdict(list)
    of_modules = set[str]()
    for name, self_ns in outermost.items():
        info = profile.modules[name]
        place = _NO_PLACE.sub("", info.place)
        if not place:
            continue
        times[place] += self_ns
        if info.class_name not in names[place]:
            names[place].append(info.class_name)
        if info.kind != "function":
            of_modules.add(place)
    if not modules:
        times = Counter(
            {line: ns for line, ns in times.items() if line not in of_modules}
        )
    return times, names


def listed(names: Sequence[str]) -> str:
    """``roll, to``; of many, the first, with ``...``."""
    more = ["..."] if len(names) > _NAMES_SHOWN else []
    return ", ".join([*names[:_NAMES_SHOWN], *more])
