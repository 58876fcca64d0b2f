"""Reading the files of many ranks, some of them damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks_of import USUAL, of_rank, rank_profile
from torchprof_hooks.files.ranks import read_all
from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.ranks.rank import Rank
from torchprof_hooks.profiles.ranks.ranks import run_of

COUNT = 70


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Of the files of so many ranks; the last one is damaged."""
    found = [tmp_path / f"{number:03}.json" for number in range(COUNT)]
    for number, path in enumerate(found):
        work = {**USUAL, ("Net > Net.head", "forward"): 5.0 + number}
        rank_profile(work, [1.0], of_rank(number, COUNT)).save(path)
    found[-1].write_text(found[-1].read_text()[:-1])
    return found


def test_many_files(paths: list[Path]) -> None:
    found = read_all(paths)
    ranks = [each for each in found if isinstance(each, Rank)]
    assert [rank.number for rank in ranks] == list(range(COUNT - 1))
    head: CellKey = (("Net", "Net.head"), "forward")
    [note] = [each for each in found if isinstance(each, str)]
    assert note.startswith("069.json is not a whole JSON file: ")
    times = [rank.cells[head] for rank in ranks]
    assert times == [(5 + number) * 1e6 for number in range(COUNT - 1)]


def test_what_ranks_have_in_common_and_rows_are_made_once(paths: list[Path]) -> None:
    ranks = [rank for rank in read_all(paths[:4]) if isinstance(rank, Rank)]
    one, other, *_ = ranks
    pairs = zip(one.cells, other.cells, strict=True)
    assert all(key is same for key, same in pairs)
    found = run_of(ranks)
    assert found.rows() is found.rows("module")
    assert found.rows("class") is not found.rows()
