"""What a program waits for when it has ended: counted, and said."""

from __future__ import annotations

from pathlib import Path

from tests.running import TORCH, profiled, written
from torchprof_hooks import Profile
from torchprof_hooks.profiles.names import BEFORE_NAME, GARBAGE_NAME

EINSUM = """
import atexit, sys
atexit.register(lambda: print("torch._dynamo" in sys.modules, "sympy" in sys.modules))
import torch
model = torch.nn.Linear(4, 4)
for _ in range(3):
    output = model(torch.ones(2, 4))
    torch.einsum("ij,jk->ik", output, torch.ones(4, 3)).sum().backward()
"""


def test_the_compiler_is_not_loaded_to_count_operations(tmp_path: Path) -> None:
    """The report is made before the program's own last words, which come first."""
    run = profiled("--tables", written(tmp_path, EINSUM), loaded=TORCH)
    assert (run.code, run.reports) == (0, 1)
    assert run.out == "False False\n"


def test_the_wall_time_is_that_of_the_program_from_its_first_line(
    tmp_path: Path,
) -> None:
    saved = tmp_path / "profile.json"
    script = "import time; time.sleep(0.5)\n" + EINSUM
    profiled("--save", str(saved), written(tmp_path, script))
    found = Profile.load(saved)
    before = next(row for row in found.start_up.rows() if row.name == BEFORE_NAME)
    assert before.self_ns >= 0.5e9  # and what importing torch took
    assert found.program is not None
    assert 0 < found.overhead_ns < found.program.program_ns
    assert found.wall_ns + found.overhead_ns >= found.program.program_ns


SLOW_FILES = """
import time
import torch
from torchprof_hooks.files.own_file import OwnFile
keep = OwnFile.keep_writing
OwnFile.keep_writing = lambda *args, **kwargs: (time.sleep(0.2), keep(*args, **kwargs))
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(20):
    time.sleep(0.005)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_what_writing_the_file_meanwhile_took_is_measuring(tmp_path: Path) -> None:
    saved = tmp_path / "profile.json"
    options = ("--save", str(saved), "--flush-secs=0.05")
    profiled(*options, written(tmp_path, SLOW_FILES))
    found = Profile.load(saved)
    assert found.phase_times_ns()["profiler"] >= 0.2e9
    assert found.overhead_ns >= 0.2e9


GARBAGE = """
import atexit, gc
def last_words():
    gc.callbacks.clear()
    print(gc.isenabled(), len(seen))
atexit.register(last_words)
import torch
seen = []
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(40):
    if step == 1:
        gc.callbacks.append(lambda phase, info: seen.append(phase))
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step % 10 == 5:
        gc.collect()
kept = [[] for _ in range(100)]
kept.append(kept)
print(seen.count("stop"))
seen.clear()
gc.set_threshold(100)
"""


def test_garbage_of_the_loop_and_none_while_the_report_is_made(tmp_path: Path) -> None:
    """There, the program is at its largest; and what is collected after the last line
    is not of the loop."""
    saved = tmp_path / "profile.json"
    run = profiled("--save", str(saved), written(tmp_path, GARBAGE))
    of_loop, enabled, seen = run.out.split()
    rows = {row.name: row for row in Profile.load(saved).loop.rows()}
    assert 4 <= rows[GARBAGE_NAME].calls <= int(of_loop)
    assert enabled == "True"
    assert int(seen) < 10  # a hundred without it
