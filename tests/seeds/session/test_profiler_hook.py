"""When ProfilerHook traces, which files it writes, and what it does not disturb."""

from __future__ import annotations

import gzip
import json
import os
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

import torchprof_hooks
from tests.ranks.processes import run_processes
from tests.running import python
from tests.seeds.session.loops import Loop, nothing_is_registered, run_loop, run_session
from tests.seeds.session.recording import Clock
from tests.thorough import IS_THOROUGH
from torchprof_hooks import ProfilerHook, SessionHook, TrainingSession


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    assert nothing_is_registered()


def files(directory: Path) -> list[str]:
    """Names of what is there, by the numbers in them."""
    names = [path.name for path in directory.iterdir()]
    return sorted(names, key=lambda name: (len(name), name))


def timelines(*steps: int | str) -> list[str]:
    return [f"timeline-{step}.json" for step in steps]


def events(path: Path) -> set[str]:
    """Names of all that takes time in a trace."""
    found = json.loads(path.read_text())["traceEvents"]
    return {event["name"] for event in found if event["ph"] == "X"}


# When: the rules of TensorFlow's hook


@pytest.mark.parametrize(
    ("save_steps", "steps", "expected"),
    [
        (2, range(1, 8), [2, 4, 6]),
        (2.5, range(1, 9), [3, 6]),
        (7, range(5, 45, 5), [15, 30]),  # counted several at once
        (4, range(1001, 1010), [1004, 1008]),
        (5, range(1, 5), []),
    ],
)
def test_every_so_many_steps(
    save_steps: float, steps: range, expected: list[int], loop: Loop, tmp_path: Path
) -> None:
    hook = ProfilerHook(save_steps, output_dir=tmp_path / "loop")
    run_loop(hook, loop, *([None] * len(steps) if steps[0] == 1 else steps))
    assert files(tmp_path / "loop") == timelines(*expected)
    assert [path.name for path in hook.paths] == timelines(*expected)
    assert hook.skipped == hook.failed == 0
    if steps.step == 1:
        in_session = ProfilerHook(save_steps, output_dir=tmp_path / "session")
        run_session(in_session, loop, len(steps), steps[0] - 1)
        assert files(tmp_path / "session") == timelines(*expected)


def test_seconds_count_from_the_end_of_the_first_step(
    loop: Loop, tmp_path: Path
) -> None:
    # A step is traced if at its start so many seconds have passed since the last one.
    clock = Clock()
    hook = ProfilerHook(save_secs=2, output_dir=tmp_path, clock=clock)
    written = []
    with TrainingSession([hook]) as session:
        for now in (0, 2.5, 2.6, 4.4, 4.5):
            clock.now = 100 + now
            session.run(loop.step)
            hook._writer.close()  # so that they can be counted
            written.append(len(files(tmp_path)))
    assert written == [0, 1, 1, 1, 2]


def test_the_first_step_is_traced_if_asked_for(loop: Loop, tmp_path: Path) -> None:
    run_session(ProfilerHook(2, output_dir=tmp_path, trace_first=True), loop, 5)
    assert files(tmp_path) == timelines(1, 3, 5)


# Exceptions


def test_a_step_that_fails_leaves_no_file_and_the_next_is_traced(
    loop: Loop, tmp_path: Path
) -> None:
    def fails() -> None:
        loop.step()
        raise ValueError("on purpose")

    with TrainingSession([ProfilerHook(2, output_dir=tmp_path)]) as session:
        for step in (loop.step, fails, fails, fails, loop.step, loop.step):
            with suppress(ValueError):
                session.run(step)
    assert files(tmp_path) == timelines(2)


def test_an_exception_goes_through_a_loop_and_what_was_traced_is_there(
    loop: Loop, tmp_path: Path
) -> None:
    hook = ProfilerHook(1, output_dir=tmp_path)

    def interrupted() -> None:
        with hook:
            for _ in range(3):
                loop.step()
                hook.step()
            loop.step()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert files(tmp_path) == timelines(2, 3)


# Files


def test_steps_with_one_number_get_files_of_their_own(
    loop: Loop, tmp_path: Path
) -> None:
    # The loop of an evaluation, which does not count: TensorFlow's hook failed there.
    hook = ProfilerHook(1, output_dir=tmp_path, trace_first=True)
    run_loop(hook, loop, 1, 7, 8, 7, 9)
    assert files(tmp_path) == timelines(1, 7, 8, 9, "7-2")


def test_compressed(loop: Loop, tmp_path: Path) -> None:
    for compress in (False, True):
        run_session(ProfilerHook(2, output_dir=tmp_path, compress=compress), loop, 2)
    plain, small = (tmp_path / name for name in files(tmp_path))
    assert small.name == "timeline-2.json.gz"
    assert json.loads(gzip.decompress(small.read_bytes()))["traceName"] == small.name
    assert small.stat().st_size < plain.stat().st_size / 5


@pytest.mark.parametrize(
    "names",
    [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")],
    ids=["torchrun", "Slurm"],
)
def test_the_rank_is_in_the_name(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    """Without a process group, too; and the same in the name of a profile."""
    for name, value in zip(names, "34", strict=True):
        monkeypatch.setenv(name, value)
    save = tmp_path / "profile.json"
    with torchprof_hooks.profile(save=save):
        run_session(ProfilerHook(2, output_dir=tmp_path), loop, 2)
    assert files(tmp_path) == ["profile-rank3.json", *timelines("2-rank3")]


def test_the_rank_of_a_process_group(tmp_path: Path) -> None:
    run_processes(
        lambda _: run_session(ProfilerHook(2, output_dir=tmp_path), Loop(), 2)
    )
    assert files(tmp_path) == timelines("2-rank0", "2-rank1")


def test_missing_directories_are_made_when_the_hook_begins(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the program is then, wherever it goes."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    hook = ProfilerHook(1, output_dir="a/b", trace_first=True)
    monkeypatch.chdir(tmp_path)
    with hook:
        assert (tmp_path / "a" / "b").is_dir()
        monkeypatch.chdir(elsewhere)
        loop.step()
        hook.step()
    assert hook.paths == [tmp_path / "a" / "b" / "timeline-1.json"]


def test_a_directory_that_cannot_be_made_is_a_warning_once(
    loop: Loop, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    hook = ProfilerHook(1, output_dir=tmp_path / "file" / "traces")
    with pytest.warns(UserWarning, match="cannot write to .*traces") as caught:
        run_session(hook, loop, 5)
    assert len(caught) == 1
    assert (hook.failed, hook.paths) == (4, [])


# Several hooks


def test_of_two_hooks_at_once_the_second_gets_no_trace_and_says_so_once(
    loop: Loop, tmp_path: Path
) -> None:
    first, second = (
        ProfilerHook(steps, output_dir=tmp_path / name)
        for steps, name in ((2, "first"), (1, "second"))
    )
    with (
        TrainingSession([first, second]) as session,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for _ in range(6):
            session.run(loop.step)
    assert "another ProfilerHook traces it" in str(caught[0].message)
    assert len(caught) == 1
    assert (first.skipped, second.skipped) == (0, 3)
    assert files(tmp_path / "first") == timelines(2, 4, 6)
    assert files(tmp_path / "second") == timelines(3, 5)


# Other profilers


def test_a_step_inside_of_another_profiler_is_skipped_counted_and_said(
    loop: Loop, tmp_path: Path
) -> None:
    hook = ProfilerHook(2, output_dir=tmp_path)

    def steps(runs: int) -> None:
        for _ in range(runs):
            loop.step()
            hook.step()

    with hook:
        with (
            profile(activities=[ProfilerActivity.CPU]) as theirs,
            pytest.warns(UserWarning, match="skips the trace of a step") as caught,
        ):
            steps(6)
        steps(4)
    assert len(caught) == 1
    assert hook.skipped == 3
    assert files(tmp_path) == timelines(8, 10)
    assert sum(event.name == "aten::square" for event in theirs.events()) == 6


def scheduled(loop: Loop, *hooks: ProfilerHook, first: bool = False) -> list[int]:
    """How many events a profiler with a schedule of its own finds at each turn."""
    found: list[int] = []
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=1, repeat=2),
        on_trace_ready=lambda profiler: found.append(len(profiler.events())),
        acc_events=True,
    ) as profiler:
        for hook in hooks:
            hook.__enter__()
        for _ in range(8):
            loop.step()
            for stepped in (*hooks, profiler) if first else (profiler, *hooks):
                stepped.step()
        for hook in hooks:
            hook.__exit__(None, None, None)
    return found


@pytest.mark.parametrize("first", [False, True])
def test_a_profiler_with_a_schedule_gets_all_of_its_events(
    first: bool, loop: Loop, tmp_path: Path
) -> None:
    # It prepares itself while ours could be running, and starts later.
    expected = scheduled(loop)
    hook = ProfilerHook(1, output_dir=tmp_path, trace_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert scheduled(loop, hook, first=first) == expected
    assert hook.skipped > 0
    assert len(expected) == 2
    assert expected[0] > 20


def test_a_profiler_that_starts_in_a_traced_step_takes_over(
    loop: Loop, tmp_path: Path
) -> None:
    def profiled() -> int:
        with profile(activities=[ProfilerActivity.CPU]) as theirs:
            loop.step()
        return len(theirs.events())

    hook = ProfilerHook(1, output_dir=tmp_path, trace_first=True)
    loop.step()
    alone = profiled()
    with TrainingSession([hook]) as session:
        session.run(loop.step)
        assert session.run(profiled) == alone
        session.run(loop.step)
    assert hook.skipped == 1
    assert files(tmp_path) == timelines(1, 3)
    assert profiled() == alone


# In processes of their own, which must not crash


HEAD = """
import os, random, signal, sys, threading, warnings
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from tests.seeds.session.loops import *
loop = Loop()
"""


def in_process(program: str, *arguments: object, head: str = HEAD) -> str:
    """What a program prints."""
    run = python("-W", "ignore", "-c", head + program, *map(str, arguments))
    assert run.returncode == 0, run.stderr
    return run.stdout


FULL_DISK = """
import resource
hook = ProfilerHook(1, output_dir=sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    run_session(hook, loop, 4)
print(len(caught), caught[0].message)
print(hook.failed, hook.paths)
"""


def test_a_full_disk_is_a_warning_once_and_training_goes_on(tmp_path: Path) -> None:
    # No file may become longer than 20 kB: what it looks like is the same.
    output = in_process(FULL_DISK, tmp_path / "traces")
    warned, counts = output.splitlines()
    assert warned.startswith("1 ProfilerHook cannot write to")
    assert counts == "3 []"
    assert files(tmp_path / "traces") == []


RANGES_ACROSS_STEPS = """
with ProfilerHook(1, output_dir=sys.argv[1], show_dataflow=False) as hook:
    for _ in range(100):
        with record_function("step"):
            loop.step()
            hook.step()  # ends one recording and begins the next, inside of the range
print(len(hook.paths))
"""


def test_ranges_that_outlive_a_recording_do_no_harm(tmp_path: Path) -> None:
    # Torch would write to memory that it has freed, and crash.
    assert in_process(RANGES_ACROSS_STEPS, tmp_path) == "99\n"
    assert "step" in events(tmp_path / "timeline-50.json")


OTHER_THREAD = """
from torchprof_hooks.instruments.kernels import session as kineto_session
kineto_session.PATIENCE = 0.1
found = []

def profiled():
    try:
        with profile(activities=[ProfilerActivity.CPU]):
            loop.step()
    except RuntimeError as error:
        found.append(str(error))

def step():
    loop.step()
    thread = threading.Thread(target=profiled)
    thread.start()
    thread.join()

hook = ProfilerHook(1, output_dir=sys.argv[1], trace_first=True)
with TrainingSession([hook]) as session:
    session.run(step)
profiled()
print(found[0][:51], len(found), len(hook.paths))
"""


def test_a_profiler_in_another_thread_is_told_to_wait(tmp_path: Path) -> None:
    # Two at a time would crash; that thread cannot end what this one has begun.
    told = "another thread is tracing a step with ProfilerHook,"
    assert in_process(OTHER_THREAD, tmp_path) == f"{told} 1 1\n"


WARMING_UP = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, schedule
import torchprof_hooks
found = []
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=0, warmup=2, active=2, repeat=1),
    on_trace_ready=lambda profiler: found.append(len(profiler.events()) > 20),
) as theirs:
    with torchprof_hooks.ProfilerHook(1, output_dir=sys.argv[1]) as hook:
        for _ in range(6):
            torch.ones(3, requires_grad=True).exp().sin().sum().backward()
            hook.step()
            theirs.step()
print(found, [path.name for path in hook.paths])
"""


@pytest.mark.parametrize(
    "head",
    [pytest.param(HEAD, marks=pytest.mark.thorough), ""],
    ids=["is there", "is imported then"],
)
def test_a_hook_that_begins_while_a_profiler_prepares_itself(
    head: str, tmp_path: Path
) -> None:
    printed = in_process(WARMING_UP, tmp_path, head=head)
    assert printed == "[True] ['timeline-6.json']\n"


FORKED = """
with ProfilerHook(1, output_dir=sys.argv[1]) as hook:
    for _ in range(2):
        loop.step()
        hook.step()
    loop.step()
    child = os.fork()
    for _ in range(3):
        loop.step()
        hook.step()
if not child:
    own = ProfilerHook(1, output_dir=sys.argv[1] + "/child")
    run_loop(own, loop, None, None, None)
    os._exit(len(own.paths))
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), len(hook.paths))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_goes_on_and_can_trace(tmp_path: Path) -> None:
    assert in_process(FORKED, tmp_path) == "2 4\n"


INTERRUPTED = """
class Interrupt(BaseException): ...

def interrupt(*arguments):
    raise Interrupt

signal.signal(signal.SIGALRM, interrupt)
random.seed(0)
for _ in range(int(sys.argv[2])):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.02), 1)
        with ProfilerHook(1, output_dir=sys.argv[1], trace_first=True) as hook:
            while True:
                loop.step()
                hook.step()
    except Interrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # Torch leaves it as it is if it is interrupted where it switches it.
        torch.set_grad_enabled(True)
    hook = ProfilerHook(1, output_dir=sys.argv[1], trace_first=True)
    run_loop(hook, loop, None)
    assert hook.paths, (hook.skipped, hook.failed)
print(nothing_is_registered())
"""


def test_interrupts_do_not_leave_a_profiler_running(tmp_path: Path) -> None:
    # At each line of ours: see tests/invisibility. Here, anywhere in torch.
    times = 100 if IS_THOROUGH else 20
    assert in_process(INTERRUPTED, tmp_path, times) == "True\n"


# Nothing else


def test_between_traced_steps_nothing_is_registered(loop: Loop, tmp_path: Path) -> None:
    seen: list[bool] = []

    class Look(SessionHook):
        def before_run(self, run_context: Any) -> None:
            seen.append(nothing_is_registered())

    with TrainingSession([ProfilerHook(3, output_dir=tmp_path), Look()]) as session:
        for _ in range(6):
            session.run(loop.step)
    assert seen == [True, True, False, True, True, False]


def test_training_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    bare, traced = Loop(), Loop()
    hook = ProfilerHook(1, output_dir=tmp_path, show_memory=True, trace_first=True)
    with TrainingSession([hook]) as session:
        for _ in range(4):
            assert torch.equal(session.run(traced.step), bare.step())
    both = zip(traced.model.parameters(), bare.model.parameters(), strict=True)
    assert all(torch.equal(own, others) for own, others in both)


def test_graphs_and_models_of_traced_steps_are_freed(
    loop: Loop, tmp_path: Path
) -> None:
    kept: list[weakref.ref[Any]] = []

    class Marker: ...

    def step() -> None:
        output = loop.model(loop.x)
        output.grad_fn.metadata["marker"] = marker = Marker()
        kept.extend([weakref.ref(output), weakref.ref(marker)])
        output.sum().backward()

    with TrainingSession([ProfilerHook(1, output_dir=tmp_path)]) as session:
        for _ in range(3):
            session.run(step)
            assert [reference() for reference in kept] == [None] * len(kept)
        kept.append(weakref.ref(loop.model))
        del loop.model
        assert kept[-1]() is None


def test_writing_is_not_done_by_the_thread_that_trains(
    loop: Loop, tmp_path: Path
) -> None:
    def writers() -> list[str]:
        names = [thread.name for thread in threading.enumerate()]
        return [name for name in names if "torchprof_hooks trace writer" in name]

    with TrainingSession([ProfilerHook(1, output_dir=tmp_path)]) as session:
        for _ in range(2):
            session.run(loop.step)
        assert writers()
    assert not writers()


# Bad input


def test_steps_of_a_loop_that_was_not_entered(tmp_path: Path) -> None:
    hook = ProfilerHook(1, output_dir=tmp_path)
    with pytest.raises(RuntimeError, match="inside of `with ProfilerHook"):
        hook.step()
    with TrainingSession([hook]), pytest.raises(RuntimeError, match="inside of `with"):
        hook.step()


def test_step_numbers(loop: Loop, tmp_path: Path) -> None:
    with ProfilerHook(1, output_dir=tmp_path, trace_first=True) as hook:
        loop.step()
        hook.step(np.int64(7))  # type: ignore[arg-type]
        for bad in ("8", 2.5):
            with pytest.raises(TypeError, match="step must be a whole number"):
                hook.step(bad)  # type: ignore[arg-type]
    assert files(tmp_path) == timelines(7)
