"""What rank 0 tells at its end."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from tests.ranks_of import BEGAN, USUAL, of_rank, rank_profile
from tests.running import plain
from torchprof_hooks import load_ranks
from torchprof_hooks.documents import ranks_at_exit
from torchprof_hooks.documents.ranks_at_exit import final_report
from torchprof_hooks.files.own_file import rank_path
from torchprof_hooks.files.profile_file import provenance_of
from torchprof_hooks.profiles.provenance import Processes, Provenance

FIRST, SECOND = of_rank(0, 2), of_rank(1, 2)
RUNNING = SECOND._replace(has_ended=False)


def save(path: Path, provenance: Provenance) -> None:
    rank_profile(USUAL, [1.0], provenance).save(rank_path(path, provenance))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of the profiles; that of rank 0 is there."""
    path = tmp_path / "profile.json"
    save(path, FIRST)
    return path


def test_rank_0_tells_of_all(path: Path) -> None:
    save(path, SECOND)
    report, _, last = final_report(path, FIRST).rpartition("\n")
    assert report == load_ranks(path.parent).report()
    assert last.endswith(f"show {path.parent / 'profile-rank0.json'}")
    assert last.startswith("The report of rank 0: ")
    assert final_report(path, SECOND) == ""
    assert final_report(path, of_rank(0, 1)) == ""


def test_the_report_that_it_names_is_that_of_the_slow_rank(path: Path) -> None:
    slow = {**USUAL, ("(data loading)", "data"): 61.0}
    for work, wait, provenance in ((USUAL, 61.0, FIRST), (slow, 1.0, SECOND)):
        profile = rank_profile(work, [wait], provenance)
        profile.save(rank_path(path, provenance))
    last = final_report(path, FIRST).splitlines()[-1]
    assert last.startswith("The report of rank 1: ")
    assert last.endswith(f"show {path.parent / 'profile-rank1.json'}")


def test_it_waits_for_the_last_files_of_others(path: Path) -> None:
    save(path, RUNNING)
    asked = count()

    def ends_later() -> bool:
        if next(asked) == 3:
            save(path, SECOND)
        return False

    final_report(path, FIRST, patience_s=600, is_hurried=ends_later)
    assert load_ranks(path.parent).ranks[1].provenance.has_ended


@pytest.mark.parametrize(
    ("patience_s", "is_hurried"), [(0, False), (600, True)], ids=["late", "hurry"]
)
def test_it_does_not_wait_for_ever_and_for_nobody_when_there_is_hurry(
    path: Path, patience_s: int, is_hurried: bool
) -> None:
    save(path, RUNNING)
    found = final_report(path, FIRST, patience_s, is_hurried=lambda: is_hurried)
    assert "2 of 2 ranks" in found


def test_files_are_read_again_only_if_they_change(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be a thousand of them."""
    own, *others = (of_rank(rank, 4, has_ended=False) for rank in range(4))
    for each in others:
        save(path, each)
    read: Counter[str] = Counter()

    def reading(file: Path) -> Processes:
        read[file.name] += 1
        return provenance_of(file)

    monkeypatch.setattr(ranks_at_exit, "provenance_of", reading)
    asked = count()
    final_report(path, own, patience_s=600, is_hurried=lambda: next(asked) > 9)
    # Once while it waits, and the first once more, to see that it is there.
    assert read == {f"profile-rank{n}.json": 1 + (n == 1) for n in (1, 2, 3)}


def test_files_of_an_earlier_run_are_none(path: Path) -> None:
    save(path, SECOND._replace(written_ns=BEGAN - 1))
    assert final_report(path, FIRST, patience_s=0) == (
        f"torchprof_hooks: no files of other ranks in {path.parent}. When they are "
        "together in a folder: python -m torchprof_hooks ranks FOLDER"
    )


#: Rank 0 ends after rank 1, which began later: their times overlap on any machine.
PROGRAM = """
import os, sys, torch, torchprof_hooks
os.environ.update(RANK="0", WORLD_SIZE="2")
off = {off}
path = sys.argv[1]
measure = lambda: torchprof_hooks.profile(save=path, ranks_report=not off)
first = measure()
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    os.environ["RANK"] = "1"
    first = measure()
net = torch.nn.Linear(2, 2)
for _ in range(2):  # entered twice, told of once
    with first:
        net(torch.ones(1, 2)).sum().backward()
if not child:
    os._exit(0)
print("done")
"""


@pytest.mark.slow
def test_profile_tells_when_the_program_ends(tmp_path: Path) -> None:
    path = str(tmp_path / "profile.json")
    run = plain("-c", PROGRAM.format(off=False), path)
    assert (run.code, run.out) == (0, "done\n")
    assert run.err.count("2 of 2 ranks of") == 1
    assert plain("-c", PROGRAM.format(off=True), path).err == ""
