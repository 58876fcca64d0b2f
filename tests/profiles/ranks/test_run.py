"""Which files are the ranks of a run, and which are left out."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.build import with_fields
from tests.ranks_of import BEGAN, SECOND, USUAL, Work, as_rank, of_rank, rank_profile
from torchprof_hooks import Profile, ProfileFileError, load_ranks
from torchprof_hooks.files.collector import without_collections
from torchprof_hooks.files.ranks import read_run
from torchprof_hooks.profiles.names import GROUPINGS
from torchprof_hooks.profiles.program import Program
from torchprof_hooks.profiles.provenance import Provenance
from torchprof_hooks.profiles.ranks.ranks import RanksData, StaleRank, run_of
from torchprof_hooks.profiles.ranks.skew import phase_times
from torchprof_hooks.profiles.step_times import Bucket, StepTimes


def profile(provenance: Provenance, steps: int = 20) -> Profile:
    return rank_profile(USUAL, [1.0], provenance, steps)


def run(*every: Provenance) -> RanksData:
    return run_of([as_rank(profile(each)) for each in every])


def four(**facts: Any) -> list[Provenance]:
    """Four ranks; these facts are true of the last one."""
    ranks = [of_rank(number, 4) for number in range(4)]
    return [*ranks[:3], ranks[3]._replace(**facts)]


def save(folder: Path, *every: Provenance) -> None:
    for each in every:
        profile(each).save(folder / f"profile-rank{each.rank}.json")


def test_all_ranks(tmp_path: Path) -> None:
    save(tmp_path, *four())
    ranks = load_ranks(tmp_path)
    assert [rank.number for rank in ranks.ranks] == [0, 1, 2, 3]
    assert (ranks.missing, ranks.stale, ranks.notes) == ((), (), ())
    for rank in ranks.ranks:
        assert sum(phase_times(rank).values()) == rank.step_ns == 51_000_000
    for by in GROUPINGS:
        rows = ranks.rows(by)
        assert [sum(row.own_ns[n] for row in rows) for n in range(4)] == [51e6] * 4
        expected = {
            (row.name, p) for row in profile(four()[0]).rows(by) for p in row.phases
        }
        assert {(row.name, row.phase) for row in rows} <= expected
    with pytest.raises(ValueError, match="by must be"):
        ranks.rows("layer")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("age_s", "ended", "steps", "is_stale"),
    [
        (19, False, 20, False),  # less than two flushes
        (21, False, 20, True),
        (21, True, 20, False),  # it had no more to do
        (21, True, 11, True),  # an exception, most likely
    ],
)
def test_stale_files(age_s: int, ended: bool, steps: int, is_stale: bool) -> None:
    age_ns = age_s * SECOND
    *others, last = four(written_ns=BEGAN + 100 * SECOND - age_ns, has_ended=ended)
    found = [as_rank(profile(each)) for each in others]
    found.append(as_rank(profile(last, steps)))
    assert run_of(found).stale == (StaleRank(3, age_ns, steps, ended),) * is_stale
    assert len(run_of(found).ranks) == 4


def test_stale_ranks_are_not_compared() -> None:
    *others, last = four(written_ns=BEGAN + 10 * SECOND, has_ended=False)
    slow = {**USUAL, ("(data loading)", "data"): 500.0}
    every = [*map(profile, others), rank_profile(slow, [0.0], last, 5)]
    ranks = run_of(map(as_rank, every))
    assert [stale.rank for stale in ranks.stale] == [3]
    assert ranks.verdict.rank is None


@pytest.mark.parametrize(
    "facts",
    [
        {"world_size": 8},
        {"command": "other.py"},
        {"run": "77"},
        {"started_ns": BEGAN - 50 * SECOND, "written_ns": BEGAN - SECOND},
    ],
    ids=lambda facts: next(iter(facts)),
)
def test_files_of_other_runs(facts: dict[str, Any]) -> None:
    found = run(*four(**{"written_ns": BEGAN + 99 * SECOND, **facts}))
    assert found.missing == (3,)
    assert found.notes == ("left out: profile-rank3.json is of another run",)


def test_a_file_that_an_earlier_run_of_the_same_job_left() -> None:
    """Such as another ``srun`` in one allocation."""
    earlier = {"started_ns": BEGAN - 50 * SECOND, "written_ns": BEGAN - SECOND}
    named = [each._replace(run="77") for each in four(**earlier)]
    assert run(*named).missing == (3,)


def test_ranks_of_a_run_may_begin_late_and_have_other_arguments() -> None:
    first, *others = four(written_ns=BEGAN + SECOND, command="train.py --local-rank=3")
    late = first._replace(started_ns=BEGAN + 50 * SECOND)
    named = [each._replace(run="77") for each in (late, *others)]
    assert run(first, *others).missing == run(*named).missing == ()


def test_two_files_of_one_rank(tmp_path: Path) -> None:
    save(tmp_path, *four())
    profile(four()[1], steps=3).save(tmp_path / "a-copy.json")
    ranks = load_ranks(tmp_path)
    assert ranks.ranks[1].steps == 20
    assert ranks.notes == ("left out: a-copy.json: profile-rank1.json is of rank 1",)


def test_versions_and_models_that_differ() -> None:
    only: Work = {("Stage", "forward"): 5.0, ("(outside modules)", "outside"): 1.0}
    other = rank_profile(only, [1.0], of_rank(1, 2, torch="2.15.0", package="9"))
    stage = {**other.modules, "Stage": replace(other.modules["Stage"], kind="module")}
    every = [profile(of_rank(0, 2)), replace(other, modules=stage)]
    notes = run_of(map(as_rank, every)).notes
    assert notes[0] == "ranks have different versions of torch: 2.13.0, 2.15.0"
    assert notes[1] == "ranks have different versions of torchprof_hooks: 0.1.0, 9"
    assert "different models" in notes[2]


def test_what_cannot_be_a_rank(tmp_path: Path) -> None:
    ranks = four()
    save(tmp_path, *ranks[:2])
    (tmp_path / "corrupt.json").write_text('{"format": "torchprof_hooks pro')
    (tmp_path / "notes.txt").write_text("not looked at")
    (tmp_path / ".profile.json").write_text("being written")
    whole = profile(ranks[2])
    replace(whole, provenance=()).save(tmp_path / "nobody.json")
    whole.merge(profile(ranks[3])).save(tmp_path / "sum.json")
    os.mkfifo(tmp_path / "pipe.json")  # not waited for
    (tmp_path / "folder.json").mkdir()
    found = load_ranks(tmp_path)
    assert found.missing == (2, 3)
    corrupt, *others = found.notes
    assert corrupt.startswith("left out: corrupt.json is not a whole JSON file")
    assert others == [
        "left out: folder.json is no file",
        "left out: nobody.json does not say which rank it is of",
        "left out: pipe.json is no file",
        "left out: sum.json is the sum of several",
    ]


def test_folders_without_ranks(tmp_path: Path) -> None:
    with pytest.raises(ProfileFileError, match=r"has no profiles of ranks$"):
        load_ranks(tmp_path)
    (tmp_path / "corrupt.json").write_text("{")
    with pytest.raises(ProfileFileError, match="no profiles of ranks; left out: corr"):
        load_ranks(tmp_path)
    with pytest.raises(FileNotFoundError):
        load_ranks(tmp_path / "missing")


@pytest.mark.parametrize("is_enabled", [True, False])
def test_reading_leaves_the_garbage_collector_as_it_is(
    is_enabled: bool, tmp_path: Path
) -> None:
    (tmp_path / "profile.json").write_text("{")
    (gc.enable if is_enabled else gc.disable)()
    try:
        with pytest.raises(ProfileFileError):
            read_run(tmp_path)
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()


def test_another_thread_leaves_the_collector_to_the_program() -> None:
    """Which may switch it off, for itself, while that thread reads."""

    def is_on() -> bool:
        with without_collections():
            return gc.isenabled()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(is_on).result()
    assert not is_on()


def test_evaluations_are_no_steps_of_a_rank() -> None:
    """Of a program, they are counted with its steps."""
    times = StepTimes(1, 10, (Bucket(200, 19, 190),), 30, 300)
    seen = with_fields(profile(of_rank(0, 1)), step_times=times)
    assert as_rank(replace(seen, program=Program("train.py"))).steps == 20


def test_files_may_have_any_name_if_none_ends_in_json(tmp_path: Path) -> None:
    for each in four():
        profile(each).save(tmp_path / f"profile-rank{each.rank}")
    assert len(read_run(tmp_path).ranks) == 4
    save(tmp_path, of_rank(0, 1))
    assert len(read_run(tmp_path).ranks) == 1
