"""Each process writes a file of its own, also while it runs."""

from __future__ import annotations

import gc
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.build import STEP, with_fields
from torchprof_hooks import Profile
from torchprof_hooks.files.own_file import OwnFile
from torchprof_hooks.profiles.provenance import Provenance, all_of

FIRST = Provenance(1, 4, 1, "node", 11, started_ns=100, written_ns=200, flush_ns=7)
OTHER = FIRST._replace(pid=22)


def signed(by: Provenance) -> Callable[[bool], Provenance]:
    return lambda has_ended: by._replace(has_ended=has_ended)


def own_file(folder: Path, by: Provenance, flush_secs: float = 1000) -> OwnFile:
    return OwnFile(folder / "profile.json", signed(by), flush_secs)


def test_the_file_says_where_it_comes_from(tmp_path: Path) -> None:
    file = own_file(tmp_path, FIRST)
    assert file.path == tmp_path / "profile-rank1.json"
    file.finish(STEP)
    found = Profile.load(file.path)
    assert found == STEP
    assert found.provenance == (FIRST._replace(has_ended=True),)


def test_two_processes_never_write_one_file(tmp_path: Path) -> None:
    first, other = own_file(tmp_path, FIRST), own_file(tmp_path, OTHER)
    first.finish(STEP)
    other.finish(with_fields(STEP, steps=7))
    first.finish(with_fields(STEP, steps=3))
    steps = {path.name: Profile.load(path).steps for path in tmp_path.iterdir()}
    assert steps == {"profile-rank1.json": 3, "profile-rank1-pid22.json": 7}


def test_files_of_earlier_runs_are_replaced(tmp_path: Path) -> None:
    earlier = FIRST._replace(pid=5, started_ns=1, written_ns=99)
    own_file(tmp_path, earlier).finish(STEP)
    own_file(tmp_path, FIRST).finish(STEP)
    assert [path.name for path in tmp_path.iterdir()] == ["profile-rank1.json"]


@pytest.mark.parametrize("content", ["", "{}", "\0", '{"provenance": 3}'])
def test_what_is_no_profile_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "profile-rank1.json").write_text(content)
    own_file(tmp_path, FIRST).finish(STEP)
    assert Profile.load(tmp_path / "profile-rank1.json") == STEP


def test_a_fork_has_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    file = OwnFile(path, lambda has_ended: FIRST._replace(pid=os.getpid()), 1000)
    file.finish(STEP)
    child = os.fork()
    if not child:
        file.finish(with_fields(STEP, steps=9))
        os._exit(0)
    os.waitpid(child, 0)
    assert Profile.load(file.path).steps == 0
    assert Profile.load(tmp_path / f"p-rank1-pid{child}.json").steps == 9


def test_it_is_written_by_another_thread_until_it_is_finished(tmp_path: Path) -> None:
    file = own_file(tmp_path, FIRST, flush_secs=0)
    threads: list[threading.Thread] = []
    enough = threading.Event()

    def make() -> Profile:
        threads.append(threading.current_thread())
        if len(threads) == 3:
            enough.set()
        if len(threads) == 2:
            raise RuntimeError("once")  # does not end it
        return with_fields(STEP, steps=len(threads))

    file.keep_writing(make)
    assert enough.wait(60)
    assert threading.current_thread() not in threads
    file.finish(with_fields(STEP, steps=1_000_000))
    threads[0].join(60)
    assert not threads[0].is_alive()
    assert Profile.load(file.path).steps == 1_000_000


def test_what_is_told_of_is_written_once(tmp_path: Path) -> None:
    """Written again later, it would look as if it were newer."""
    file = own_file(tmp_path, FIRST, flush_secs=0.01)
    asked = threading.Semaphore(0)

    def make() -> Profile:
        asked.release()
        return STEP

    file.keep_writing(make, at_once=True)
    assert asked.acquire(timeout=10)
    assert not asked.acquire(timeout=0.2)
    file.keep_writing(make, at_once=True)
    assert asked.acquire(timeout=10)
    file.finish(STEP)


def test_where_no_thread_can_be_started_the_end_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    file = own_file(tmp_path, FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        file.keep_writing(lambda: STEP, at_once=True)
    assert not file.path.exists()
    file.finish(STEP)
    assert Profile.load(file.path) == STEP


def test_a_profiler_that_is_dropped_writes_no_more(tmp_path: Path) -> None:
    threads = threading.active_count()
    profiler = torchprof_hooks.profile(save=tmp_path / "p.json", flush_secs=0.01)
    profiler.start()
    nn.Identity()(torch.ones(1))
    dropped = weakref.ref(profiler)
    del profiler
    deadline = time.monotonic() + 10
    while (dropped() or threading.active_count() > threads) and (
        time.monotonic() < deadline
    ):
        gc.collect()
        time.sleep(0.01)
    assert dropped() is None
    assert threading.active_count() == threads


def test_profile_saves_itself_while_it_runs(tmp_path: Path) -> None:
    net, path = nn.Linear(2, 2), tmp_path / "profile.json"
    with torchprof_hooks.profile(save=path, flush_secs=0.01) as prof:
        net(torch.ones(1, 2)).sum().backward()
        for _ in range(6000):
            if path.exists():
                break
            threading.Event().wait(0.01)
        early = Profile.load(path)
        net(torch.ones(1, 2)).sum().backward()
    assert not early.provenance[0].has_ended
    assert Profile.load(path) == prof.profile
    assert Profile.load(path).provenance[0].has_ended
    for thread in threading.enumerate():
        if "writer" in thread.name:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("never", [1e12, math.inf])
def test_it_need_not_be_written_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, never: float
) -> None:
    """A thread can wait for some hundred years."""
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    file = own_file(tmp_path, FIRST, flush_secs=never)
    before = set(threading.enumerate())
    file.keep_writing(lambda: STEP)
    started = set(threading.enumerate()) - before
    for thread in started:
        thread.join(0.2)  # it waits, or has failed
    file.finish(STEP)
    for thread in started:
        thread.join(60)
    assert failed == []
    assert Profile.load(file.path) == STEP


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    folder.mkdir()
    prof = torchprof_hooks.profile(save=folder / "profile.json")
    folder.rmdir()
    with pytest.warns(UserWarning, match=r"missing.* is not saved"), prof:
        nn.Linear(2, 2)(torch.ones(1, 2))
    assert not prof.profile.is_empty
    # It takes the place of no exception, also where warnings are errors, as here.
    with pytest.raises(LookupError, match="planted"), prof:
        raise LookupError("planted")
    with (
        pytest.warns(UserWarning, match="is not saved"),
        pytest.raises(LookupError, match="planted"),
        prof,
    ):
        raise LookupError("planted")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/profile.json", "missing does not exist: make it first"),
        ("file/profile.json", "file is not a folder: make it first"),
        ("folder", "that is a folder: name a file in it"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()
    with pytest.raises(ValueError, match=f"save must be .* not '{name}': .*{why}"):
        torchprof_hooks.profile(save=name)


def test_processes_of_sums() -> None:
    later = FIRST._replace(written_ns=300)
    assert all_of((FIRST,), (OTHER, later)) == all_of((OTHER,), (later,), (FIRST,))
    assert all_of((FIRST,), (later,), (OTHER,)) == (later, OTHER)
    one, other = (replace(STEP, provenance=(by,)) for by in (FIRST, OTHER))
    assert one.merge(other).provenance == (FIRST, OTHER)
