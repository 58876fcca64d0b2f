"""Documents of large models: what they cost is counted, and grows as the models do."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.build import profile_of, timed
from tests.ranks_of import of_rank
from torchprof_hooks import Profile, compare
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.ranks.rank import rank_of
from torchprof_hooks.profiles.ranks.ranks import run_of
from torchprof_hooks.ranks import Ranks

MODULES = 200
#: Twice as many modules take at most so many times as many calls.
MOST = 2.2


def of_modules(paths: list[tuple[str, ...]], kind: str, rank: int) -> Profile:
    """A profile of these calls, each of which has a forward and a backward, and calls a
    function."""
    infos = {
        name: ModuleInfo(kind.format(n), order=n)
        for n, name in enumerate(path[-1] for path in paths)
    }
    infos["relu(8x4)"] = ModuleInfo("relu", "function", order=len(infos))
    cells: dict[Any, Any] = {}
    for n, path in enumerate(paths):
        cells[path, "forward"] = timed(100 + n % 7)
        cells[path, "backward"] = timed(200 + n % 5)
        cells[(*path, "relu(8x4)"), "forward"] = timed(50)
    return profile_of(cells, infos, steps=4, provenance=(of_rank(rank, 2),))


def wide(modules: int, rank: int = 0) -> Profile:
    """As many kinds as modules."""
    paths = [("Net",), *(("Net", f"Net.part{n}") for n in range(modules))]
    return of_modules(paths, "Part{}", rank)


def alike(modules: int, rank: int = 0) -> Profile:
    """Layers of one kind."""
    paths = [("Net",), *(("Net", f"Net.layers.{n}") for n in range(modules))]
    return of_modules(paths, "Layer", rank)


def deep(modules: int, rank: int = 0) -> Profile:
    """Towers of 100 modules, each of which calls the next."""
    towers = [[f"m{at + n}" for n in range(100)] for at in range(0, modules, 100)]
    paths = [tuple(names[: n + 1]) for names in towers for n in range(len(names))]
    return of_modules(paths, "Layer", rank)


Make = Callable[..., Profile]

DOCUMENTS: dict[str, Callable[[Make, int], object]] = {
    "screen": lambda make, n: make(n).report(),
    "full": lambda make, n: make(n).report(full=True),
    "page": lambda make, n: make(n)._page(),
    "json": lambda make, n: make(n).to_json(),
    "markdown": lambda make, n: make(n).to_markdown(),
    "compare": lambda make, n: compare(make(n), make(n, 1)).to_json(),
    "ranks": lambda make, n: Ranks.of(
        run_of(rank_of(f"{rank}.json", make(n, rank)) for rank in (0, 1))
    ).to_json(),
}


def calls_in(work: Callable[[], object]) -> int:
    """How many functions are called, of Python and of C."""
    count = 0

    def called(frame: object, event: str, about: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("make", [wide, alike, deep])
@pytest.mark.parametrize("document", DOCUMENTS)
def test_twice_as_many_modules_are_twice_the_work(document: str, make: Make) -> None:
    work = DOCUMENTS[document]
    work(make, 3)  # imports
    few, many = (calls_in(partial(work, make, n)) for n in (MODULES, 2 * MODULES))
    assert many < MOST * few


def test_garbage_is_not_collected_while_a_document_is_made() -> None:
    """Each collection would go through all that is made."""
    begun = []

    def collect(moment: str, about: dict[str, Any]) -> None:
        begun.append(moment)

    few, threshold = wide(50), gc.get_threshold()
    few.report()
    gc.set_threshold(10)
    gc.callbacks.append(collect)
    try:
        with few._shown():
            begun.clear()
            few._page()
            assert not begun
    finally:
        gc.callbacks.remove(collect)
        gc.set_threshold(*threshold)
    assert gc.isenabled()
