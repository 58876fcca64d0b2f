"""The line that rank 0 prints while a program runs: from files that may be missing,
old or damaged."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.ranks_of import BEGAN, USUAL, Work, of_rank, rank_profile
from torchprof_hooks import Profile
from torchprof_hooks.documents import ranks_live
from torchprof_hooks.documents.ranks_live import RanksWatch
from torchprof_hooks.files.own_file import rank_path

FIRST = of_rank(0, 3)
SLOWED: Work = {**USUAL, ("Net > Net.head", "forward"): 35}
LINE = "torchprof_hooks: step {}: rank 2 is slow: "


@pytest.fixture(autouse=True)
def at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_live, "_MOST_SHARE", float("inf"))


class Folder:
    """The files of three ranks, of which one may be slow."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.watch = RanksWatch(path)
        self._known: dict[int, Profile] = {}

    def file(self, number: int) -> Path:
        return rank_path(self.path, of_rank(number, 3))

    def goes_on(self, slow: int | None = None, steps: int = 20) -> None:
        """All ranks make steps, and write their files."""
        for number in range(3):
            is_slow = slow in (None, number)
            work = SLOWED if number == slow else USUAL
            waits = [1.0 if is_slow else 31.0]
            more = rank_profile(work, waits, of_rank(number, 3), steps)
            known = self._known.get(number)
            found = self._known[number] = known.merge(more) if known else more
            found.save(self.file(number))

    def looks(self, *slow: int | None) -> list[str]:
        """The lines that come as ranks go on and are compared."""
        return [line for each in slow if (line := self._look_after(each))]

    def _look_after(self, slow: int | None) -> str:
        self.goes_on(slow)
        return self.watch.look(FIRST)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "profile.json")


def test_one_line_when_a_rank_becomes_slow_and_one_when_that_is_over(
    folder: Folder,
) -> None:
    assert folder.looks(None, None, 2) == []
    [line] = folder.looks(2, 2, 2)
    assert line.startswith(LINE.format(80))
    assert "it spends that in Net.head, forward (+30.00ms a step)" in line
    [line] = folder.looks(None, None, None, None)
    assert line == "torchprof_hooks: step 180: rank 2 is no longer slow"


def test_few_steps_are_collected(folder: Folder) -> None:
    lines = []
    for _ in range(8):
        folder.goes_on(2, steps=3)
        lines.append(folder.watch.look(FIRST))
    assert [bool(line) for line in lines] == [False] * 5 + [True, False, False]


def test_others_and_single_processes_do_not_look(folder: Folder) -> None:
    folder.looks(2)
    folder.goes_on(2)
    for own in (of_rank(1, 3), of_rank(0, 1), of_rank(0, 257)):
        assert folder.watch.look(own) == ""
    assert folder.watch.look(FIRST) != ""


@pytest.mark.parametrize(
    "content",
    [
        None,
        "{",
        "{}",
        rank_profile(USUAL, [1.0], of_rank(1, 3)._replace(written_ns=BEGAN - 1)),
        rank_profile(USUAL, [1.0], of_rank(1, 3)._replace(run="another")),
        rank_profile(USUAL, [1.0], of_rank(1, 4)),
        rank_profile(USUAL, [1.0], of_rank(2, 3)),
    ],
    ids=["missing", "half", "no profile", "old", "of another run", "size", "rank"],
)
def test_a_rank_without_a_file_of_this_run_is_waited_for(
    folder: Folder, content: str | Profile | None
) -> None:
    folder.looks(2)
    for _ in range(3):
        folder.goes_on(2)
        folder.file(1).unlink()
        if isinstance(content, Profile):
            content.save(folder.file(1))
        elif content is not None:
            folder.file(1).write_text(content)
        assert folder.watch.look(FIRST) == ""
    [line] = folder.looks(2)
    assert line.startswith(LINE.format(100))


def test_a_rank_that_writes_no_more_is_waited_for(folder: Folder) -> None:
    folder.looks(2)
    last = folder.file(1).read_bytes()
    for _ in range(3):
        folder.goes_on(2)
        folder.file(1).write_bytes(last)
        assert folder.watch.look(FIRST) == ""


def test_it_looks_again_when_that_is_cheap(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, took = [0.0], [0.0]
    monkeypatch.setattr(ranks_live, "_MOST_SHARE", 0.01)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "thread_time", lambda: took[0])
    folder.looks(2)

    def slow_look(paths: list[Path], own: object) -> str:
        took[0] += 2
        return "looked"

    folder.watch._compared = slow_look
    assert folder.watch.look(FIRST) == "looked"
    now[0] += 199
    assert folder.watch.look(FIRST) == ""
    now[0] += 2
    assert folder.watch.look(FIRST) == "looked"
