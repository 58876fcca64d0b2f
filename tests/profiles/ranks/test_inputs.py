"""The shapes of functions' calls at several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

import torchprof_hooks
from tests.helpers import timed
from tests.profile_of import with_fields
from tests.ranks_of import MS, USUAL, as_rank, of_rank, profile_of
from torchprof_hooks.profiles.modules import ModuleInfo, Shapes
from torchprof_hooks.profiles.ranks.rank import Rank
from torchprof_hooks.profiles.ranks.ranks import run_of

SLOWER = {key: ms * 2 if "Net" in key[0] else ms for key, ms in USUAL.items()}
STEPS = 20


def calling(number: int, shapes: Sequence[Shapes] = (), times: int = 1) -> Rank:
    """Rank 2 of three is slower in all modules. In each step, `Net.body` calls `f`
    with one of these shapes after the other, or so many times with each."""
    work, wait = (SLOWER, 1.0) if number == 2 else (USUAL, 47.0)
    profile = profile_of(work, [wait], of_rank(number, 3), STEPS)
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


def test_shapes_of_a_function_with_many_tensors_are_known() -> None:
    """Of the first ones: an LSTM has its weights as inputs, too."""
    with torchprof_hooks.profile(functions=True) as prof:
        nn.LSTM(4, 4)(torch.ones(7, 2, 4))
    [info] = [i for i in prof.profile.modules.values() if i.class_name == "lstm"]
    assert info.shapes is not None
    assert info.shapes[0] == (7, 2, 4)
    assert len(info.shapes) == 6


def test_calls_that_differ_in_lengths_are_one_row_of_all_ranks() -> None:
    ranks = run_of(calling(n, [s]) for n, s in enumerate((SMALL, MIDDLE, LARGE)))
    rows = [row for row in ranks.rows("call") if "f(" in row.name]
    assert [row.name for row in rows] == ["Net.body: f(8x[10..80]x4, 4x4)"]
    assert list(rows[0].own_ns) == [MS // 100] * 3
