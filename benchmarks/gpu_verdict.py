"""What the parts of `gpu_check.py` have shown, and what they could not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import results
import torch
from bench import device
from gpu_parts import Outcome
from gpu_results import file_name
from page.gpu_aims import (
    ACCURACY,
    COST,
    PARTS,
    TESTS,
    VERDICT,
    verdict_table,
)
from results import Table

OUTCOMES: Final = ("passed", "failed", "skipped")

#: A line of pytest's, with -v: file, test, outcome.
_TEST: Final = re.compile(
    r"^(\S+\.py)::.* (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.MULTILINE
)
_WORDS: Final = {"PASSED": "passed", "SKIPPED": "skipped", "XFAIL": "passed"}

#: What was never tried, the number of devices that it needs, and how it can be.
NEVER_TRIED: Final = (
    (
        "several GPUs",
        "cuda",
        2,
        "`make gpu-check` (a test of it is skipped with one)",
    ),
    (
        "NCCL",
        "cuda",
        2,
        "`torchrun --nproc-per-node 2 examples/ranks.py --device cuda`",
    ),
    (
        "MPS",
        "mps",
        1,
        "`python -m torchprof_hooks train.py` with a model on `mps`",
    ),
    (
        "XPU",
        "xpu",
        1,
        "`python -m torchprof_hooks train.py` with a model on `xpu`",
    ),
)


def outcomes_of_tests(log: str) -> dict[str, Counter[str]]:
    """How many tests had which outcome, by file, of what pytest has printed so far: it
    may have been stopped."""
    counts: dict[str, Counter[str]] = {}
    for file, word in _TEST.findall(log):
        counts.setdefault(file, Counter())[_WORDS.get(word, "failed")] += 1
    return counts


def forget(parts: Iterable[str]) -> None:
    """Delete earlier results of these parts: what fails now has none."""
    for part in parts:
        (results.DIRECTORY / f"{file_name(f'gpu_{part}')}.json").unlink(missing_ok=True)


def save_tests(log: str) -> None:
    """Save what came of the tests, and show what failed."""
    counts = outcomes_of_tests(log)
    rows: list[list[results.Cell]] = [
        [name, *(count[each] for each in OUTCOMES)] for name, count in counts.items()
    ]
    table = Table("Tests that need a GPU", ["", *OUTCOMES], rows)
    results.save(file_name(TESTS), [table], {"found": counts})
    if not counts or any(count["failed"] for count in counts.values()):
        print(log[-6000:], flush=True)


def save(outcomes: Mapping[str, Outcome]) -> None:
    """Save the verdict, of these parts and of results that are there."""
    rows: list[list[results.Cell]] = [
        [name, each.status, f"{each.seconds:.0f}"] for name, each in outcomes.items()
    ]
    whole = sum(each.seconds for each in outcomes.values())
    parts = Table("Parts", ["", "", "s"], rows, [*notes(), f"In all, {whole:.0f} s."])
    figures = {"found": {name: each._asdict() for name, each in outcomes.items()}}
    results.write(file_name(PARTS), [parts], figures)
    verdict = verdict_table(lambda part: results.figures(file_name(part)))
    results.save(file_name(VERDICT), [parts, never_tried(), verdict])


def notes() -> Iterator[str]:
    """On what, and what has failed in parts that went on."""
    facts = results.machine()
    shown = facts.get("device", device())
    yield f"{shown}, torch {facts['torch']}, Python {facts['python']}."
    for part in (ACCURACY, COST):
        failures = (results.figures(file_name(part)) or {}).get("failures", {})
        for name, error in failures.items():
            yield f"{part}: {name} failed: `{error}`."


def never_tried() -> Table:
    """What this machine could have tried, and what no machine has."""
    rows: list[list[results.Cell]] = [
        [what, getattr(torch, kind).device_count(), needed, command]
        for what, kind, needed, command in NEVER_TRIED
    ]
    headers = ["", "devices here", "needed", "would be tried by"]
    return Table("Never tried", headers, rows)
