"""What `make gpu-check` has found, with each version of torch that it was run with."""

from __future__ import annotations

from collections.abc import Iterator

import results
from gpu_results import files

from page.gpu_aims import ACCURACY, COST, TESTS, VERDICT, verdict_table


def gpu_results() -> str:
    """All tables of each run, its verdict first; without any, the aims."""
    runs = [path.stem.removeprefix(VERDICT) for path in files(VERDICT)]
    if not runs:
        return verdict_table(lambda _: None).markdown()
    return "\n\n".join(text for run in runs for text in _run(run))


def _run(run: str) -> Iterator[str]:
    """run: what the names of its files end in."""
    parts, untried, verdict = results.load(f"{VERDICT}{run}")["tables"]
    yield from (table.markdown() for table in (verdict, parts, untried))
    for part in (ACCURACY, COST, TESTS):
        if results.figures(f"{part}{run}") is not None:
            for table in results.load(f"{part}{run}")["tables"]:
                yield table.markdown()
