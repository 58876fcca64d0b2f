"""Larger inputs are told from a slower device, by the shapes of functions' calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.build import MS, timed, with_fields
from tests.ranks_of import USUAL, as_rank, of_rank, rank_profile
from torchprof_hooks.documents.build.ranks import ranks_document
from torchprof_hooks.documents.render.text import text_of
from torchprof_hooks.profiles.modules import ModuleInfo, Shapes
from torchprof_hooks.profiles.ranks.rank import Rank
from torchprof_hooks.profiles.ranks.ranks import RanksData, run_of

SLOWER = {key: ms * 2 if "Net" in key[0] else ms for key, ms in USUAL.items()}
STEPS = 20


def calling(number: int, shapes: Sequence[Shapes] = (), times: int = 1) -> Rank:
    """Rank 2 of three is slower in all modules. In each step, `Net.body` calls `f`
    with one of these shapes after the other, or so many times with each."""
    work, wait = (SLOWER, 1.0) if number == 2 else (USUAL, 47.0)
    profile = rank_profile(work, [wait], of_rank(number, 3), STEPS)
    cells, infos = dict(profile.cells), dict(profile.modules)
    body = ("Net", "Net.body")
    for each in shapes:
        name = f"f({each})"
        infos[name] = ModuleInfo("f", "function", shapes=each)
        count = STEPS * times // len(shapes)
        cells[(*body, name), "forward"] = timed(*[MS // 100] * count)
    profile = replace(with_fields(profile, cells=cells), modules=infos)
    return as_rank(profile)


SMALL, MIDDLE, LARGE = (((8, length, 4), (4, 4)) for length in (10, 20, 80))


def text(*ranks: Rank) -> str:
    """Of the verdict, in one line."""
    found: RanksData = run_of(ranks)
    assert found.verdict.rank == 2
    return " ".join(text_of(ranks_document(found)).split("\n\n")[0].split())


@pytest.mark.parametrize(
    ("of_all", "said"),
    [
        (
            [([SMALL], 1), ([SMALL, MIDDLE], 1), ([LARGE], 1)],
            "It has more work: f is given 8x80x4 there on average, 8x10x4 to 8x15x4 at "
            "the others: divide the data evenly.",
        ),
        (
            [([SMALL], 1), ([SMALL], 1), ([SMALL], 3)],
            "It has more work: it calls f 3.0 times a step, the others 1.0 times.",
        ),
        (
            [([SMALL, LARGE], 1)] * 3,
            "Inputs of f are as large at the others: so it has a slower device, or",
        ),
        ([([], 1)] * 3, "So it has more work, or a slower device."),
        ([([], 1), ([SMALL], 1), ([LARGE], 1)], "more work, or a slower device."),
    ],
    ids=["larger", "more calls", "as large", "no shapes", "not at all ranks"],
)
def test_what_shapes_say_of_a_slow_rank(
    of_all: Sequence[tuple[Sequence[Shapes], int]], said: str
) -> None:
    found = text(*(calling(n, *each) for n, each in enumerate(of_all)))
    assert said in found


def test_shapes_of_a_function_with_many_tensors_are_known() -> None:
    """Of the first ones: an LSTM has its weights as inputs, too."""
    with torchprof_hooks.profile(functions=True) as prof:
        nn.LSTM(4, 4)(torch.ones(7, 2, 4))
    [info] = [i for i in prof.profile.modules.values() if i.class_name == "lstm"]
    assert info.shapes is not None
    assert info.shapes[0] == (7, 2, 4)
    assert len(info.shapes) == 6


def test_calls_that_differ_in_shapes_are_one_row_of_all_ranks() -> None:
    ranks = run_of(calling(n, [s]) for n, s in enumerate((SMALL, MIDDLE, LARGE)))
    rows = [row for row in ranks.rows("call") if "f (" in row.name]
    assert [row.name for row in rows] == ["Net.body: f (3 shapes)"]
    assert list(rows[0].own_ns) == [MS // 100] * 3
