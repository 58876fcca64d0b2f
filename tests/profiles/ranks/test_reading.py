"""Reading the files of many ranks, by one process and by several."""

from __future__ import annotations

import json
import subprocess
import sys
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


def check(notes: list[str], times: list[float]) -> None:
    [note] = notes
    assert note.startswith("069.json is not a whole JSON file: ")
    assert times == [(5 + number) * 1e6 for number in range(COUNT - 1)]


def test_one_process(paths: list[Path]) -> None:
    found = read_all(paths, 1)
    ranks = [each for each in found if isinstance(each, Rank)]
    assert [rank.number for rank in ranks] == list(range(COUNT - 1))
    head: CellKey = (("Net", "Net.head"), "forward")
    notes = [each for each in found if isinstance(each, str)]
    check(notes, [rank.cells[head] for rank in ranks])


#: Reads with two processes, in one that has one thread; then again, where two files
#: more can be opened: too few for another process.
READS = """
import json, os, resource, sys
from pathlib import Path
from torchprof_hooks.files.ranks import read_all

forks = []
os.register_at_fork(after_in_parent=lambda: forks.append(1))
head = ("Net", "Net.head"), "forward"

def read():
    forks.clear()
    found = read_all(sorted(Path(sys.argv[1]).iterdir()), 2)
    notes = [each for each in found if isinstance(each, str)]
    ranks = [each for each in found if not isinstance(each, str)]
    print(json.dumps([len(forks), notes, [rank.cells[head] for rank in ranks]]))

read()
free = os.open(os.devnull, os.O_RDONLY)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, free + 2))
read()
"""


def test_two_processes_or_one_where_there_cannot_be_more(paths: list[Path]) -> None:
    command = [sys.executable, "-W", "error", "-c", READS, str(paths[0].parent)]
    lines = subprocess.check_output(command).splitlines()
    for line, forks in zip(lines, (2, 0), strict=True):
        forked, notes, times = json.loads(line)
        assert forked == forks
        check(notes, times)


def test_what_ranks_have_in_common_and_rows_are_made_once(paths: list[Path]) -> None:
    ranks = [rank for rank in read_all(paths[:4], 1) if isinstance(rank, Rank)]
    one, other, *_ = ranks
    pairs = zip(one.cells, other.cells, strict=True)
    assert all(key is same for key, same in pairs)
    found = run_of(ranks)
    assert found.rows() is found.rows("module")
    assert found.rows("class") is not found.rows()
