"""What rank 0 tells at its end."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.programs import plain
from tests.ranks_of import BEGAN, USUAL, of_rank, profile_of
from torchprof_hooks import load_ranks
from torchprof_hooks.documents.ranks_at_exit import final_report
from torchprof_hooks.files.own_file import rank_path
from torchprof_hooks.profiles.provenance import Provenance

FIRST, SECOND = of_rank(0, 2), of_rank(1, 2)


def save(path: Path, provenance: Provenance) -> None:
    profile_of(USUAL, [1.0], provenance).save(rank_path(path, provenance))


def test_rank_0_tells_of_all(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save(path, FIRST)
    save(path, SECOND)
    assert final_report(path, FIRST) == load_ranks(tmp_path).report()
    assert final_report(path, SECOND) == ""
    assert final_report(path, of_rank(0, 1)) == ""


def test_it_waits_for_the_last_files_of_others(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save(path, FIRST)
    save(path, SECOND._replace(has_ended=False))
    later = threading.Timer(0.2, save, (path, SECOND))
    later.start()
    final_report(path, FIRST, patience_s=60)
    assert load_ranks(tmp_path).ranks[1].provenance.has_ended
    later.join()


#: Counts how often each file is opened while rank 0 waits in vain.
WAITS = """
import sys
from collections import Counter
from pathlib import Path
from torchprof_hooks.files.profile_file import provenance_of
from torchprof_hooks.documents.ranks_at_exit import final_report

path = Path(sys.argv[1])
[own] = provenance_of(path.with_name("profile-rank0.json"))
opened = Counter()
sys.addaudithook(lambda event, args: event == "open" and opened.update([str(args[0])]))
final_report(path, own, patience_s=1)
print(max(count for name, count in opened.items() if name.endswith(".json")))
"""


@pytest.mark.slow
def test_files_are_read_again_only_if_they_change(tmp_path: Path) -> None:
    """There may be a thousand of them."""
    path = tmp_path / "profile.json"
    for rank in range(4):
        save(path, of_rank(rank, 4, has_ended=False))
    run = plain("-c", WAITS, str(path))
    # Once while it waits, once to see that one is there, and once for the report.
    assert (run.out, run.err) == ("3\n", "")


def test_it_does_not_wait_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save(path, FIRST)
    save(path, SECOND._replace(has_ended=False))
    assert "2 of 2 ranks" in final_report(path, FIRST, patience_s=0)


def test_it_waits_for_nobody_when_there_is_hurry(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save(path, FIRST)
    save(path, SECOND._replace(has_ended=False))
    found = final_report(path, FIRST, patience_s=600, is_hurried=lambda: True)
    assert "2 of 2 ranks" in found


def test_files_of_an_earlier_run_are_none(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save(path, FIRST)
    save(path, SECOND._replace(written_ns=BEGAN - 1))
    found = final_report(path, FIRST, patience_s=0)
    assert found == (
        f"torchprof_hooks: no files of other ranks in {tmp_path}. When they are "
        "together in a folder: python -m torchprof_hooks ranks FOLDER"
    )


PROGRAM = """
import os, sys, torch, torchprof_hooks
os.environ.update(RANK="0", WORLD_SIZE="2")
off = {off}
path = sys.argv[1]
measure = lambda: torchprof_hooks.profile(save=path, ranks_report=not off)
first = measure()
child = os.fork()
if not child:
    os.environ["RANK"] = "1"
    first = measure()
net = torch.nn.Linear(2, 2)
for _ in range(2):  # entered twice, told of once
    with first:
        net(torch.ones(1, 2)).sum().backward()
if not child:
    os._exit(0)
os.waitpid(child, 0)
print("done")
"""


@pytest.mark.slow
def test_profile_tells_when_the_program_ends(tmp_path: Path) -> None:
    path = str(tmp_path / "profile.json")
    run = plain("-c", PROGRAM.format(off=False), path)
    assert (run.code, run.out) == (0, "done\n")
    assert run.err.count("2 of 2 ranks of") == 1
    assert plain("-c", PROGRAM.format(off=True), path).err == ""
