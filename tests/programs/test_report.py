"""What the report of a whole program says, of real programs."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from tests.running import (
    OWN_CLOCK,
    TITLE,
    TRAIN,
    Run,
    plain,
    profiled,
    written,
)
from torchprof_hooks import Profile
from torchprof_hooks.documents.render.units import TIME_UNITS

#: Where the clock is the machine's.
PLAIN = """
import time
import torch
from torch import nn
import torch.nn.functional as F
torch.set_num_threads(1)
"""
HEAD = OWN_CLOCK + PLAIN
#: After this, all that is measured takes some time.
TICKING = "owned_clock.reading_ns = 10_000\n"

GAN = (
    HEAD
    + """
class Generator(nn.Sequential):
    def forward(self, x):
        busy(3)
        return super().forward(x)
class Discriminator(nn.Sequential):
    def forward(self, x):
        busy(2)
        return super().forward(x)
generator, discriminator = Generator(nn.Linear(4, 4)), Discriminator(nn.Linear(4, 1))
steps = [torch.optim.SGD(m.parameters(), 0.1) for m in (generator, discriminator)]
for _ in range(6):
    fake = generator(torch.ones(2, 4))
    busy(1 / 6)
    discriminator(fake.detach()).sum().backward()
    steps[1].step()
    discriminator(fake).sum().backward()
    steps[0].step()
"""
)


def with_tables(*arguments: str) -> Run:
    """What comes of a program by us, with Theano's tables."""
    return profiled("--tables", *arguments)


def section(report: str, title: str) -> list[str]:
    """The lines of the first section of that title."""
    lines = report.splitlines()
    start = lines.index(title)
    end = lines.index("", start) if "" in lines[start:] else len(lines)
    return lines[start + 1 : end]


def seconds(text: str) -> float:
    """The first time in a line, to a millisecond."""
    found = re.search(rf"([\d.]+)({'|'.join(TIME_UNITS)})", text)
    assert found, text
    return round(float(found[1]) * TIME_UNITS[found[2]] / TIME_UNITS["sec"], 3)


def ticking(program: str) -> str:
    return HEAD + TICKING + program.removeprefix(HEAD)


def line(report: str, start: str) -> str:
    return next(x for x in report.splitlines() if x.strip().startswith(start))


FAILS_BETWEEN_STEPS = """
from torchprof_hooks.program import ending
def fail(*arguments):
    raise OSError("planted")
ending.Outputs.flush_if_due = fail
"""


def test_what_fails_between_steps_does_not_fail_the_program(tmp_path: Path) -> None:
    run = profiled(written(tmp_path, "import torch" + FAILS_BETWEEN_STEPS + TRAIN))
    assert (run.code, run.out, run.reports) == (0, "trained\n", 1)
    assert run.before_report == "torchprof_hooks: OSError('planted')\n"


SLOW_ENDING = """
from torchprof_hooks.program.recorder import Recorder
finish = Recorder._finish
def finish_slowly(*args):
    busy(1000)
    return finish(*args)
Recorder._finish = finish_slowly
"""


def test_each_function_and_their_sum(tmp_path: Path) -> None:
    """Making the report takes no time of the program."""
    saved = tmp_path / "profile.json"
    program = written(tmp_path, GAN + SLOW_ENDING)
    run = with_tables("--save", str(saved), program)
    assert run.code == 0, run.err
    titles = [x for x in run.err.splitlines() if x.startswith("Message: ")]
    of_functions = sorted(titles[1:])  # as they are printed: by what they took
    assert "Discriminator, called first at program.py:" in of_functions[0]
    assert "Generator, called first at program.py:" in of_functions[1]
    assert len(re.findall(r"^Class$", run.err, re.MULTILINE)) == 1
    total = section(run.err, "Sum of all(2) printed profiles")
    parts = {x.split(":")[0].strip(): seconds(x) for x in total}
    whole = parts.pop("Sum")
    assert parts == {
        "Time in Discriminator": 0.024,
        "Time in Generator": 0.018,
        "Time outside of all": 0.001,
    }
    assert whole == seconds(line(run.err, "Time measured")) == 0.043
    assert Profile.load(saved).overhead_ns >= 1e9


PROFILED_FUNCTION = (
    HEAD
    + """
import torchprof_hooks
owned_clock.reading_ns = 0  # nothing but work takes time
class Slow(torch.optim.SGD):
    def step(self):
        busy(2)
        super().step()
net = nn.Linear(4, 1)
optimizer = Slow(net.parameters(), 0.1)
@torchprof_hooks.profile_function
def train_step():
    busy(5)
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
for _ in range(6):
    train_step()
"""
)


def test_a_profiled_function(tmp_path: Path) -> None:
    run = with_tables(written(tmp_path, PROFILED_FUNCTION))
    lines = section(run.err, "Function profiling")
    assert lines[0].startswith("Message: train_step, made at program.py:")
    assert lines[1].startswith("Time in 6 calls to train_step: 42.00ms (7.00ms ")
    assert "  optimizers: 12.00ms (28.6 %)" in lines
    assert "\n6 steps: first " in run.err


def test_idle_devices(tmp_path: Path) -> None:
    """Without the flag, nothing is loaded for it."""
    module = "torchprof_hooks.instruments.kernels.device_tracer"
    seen = f"\nimport sys\nprint({module!r} in sys.modules)"
    program = written(tmp_path, TRAIN_30 + seen)
    assert profiled(program).out.splitlines()[-1] == "False"
    of_cpu = "are not known: no device was in use after 2 steps"
    told = "cuda:0: busy " if torch.cuda.is_available() else of_cpu
    run = profiled("--device-idle", program)
    assert (run.code, run.out.splitlines()[-1]) == (0, "True")
    assert told in run.err


COMPILED = (
    PLAIN
    + """
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
model = torch.compile(net, backend="aot_eager")
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(30):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
from torch._dynamo.utils import counters
print(counters["frames"]["total"])
"""
)


def test_a_compiled_model_stays_compiled(tmp_path: Path) -> None:
    path = written(tmp_path, COMPILED)
    alone = plain(path)
    assert alone.code == 0
    run = with_tables(path)
    assert run.out == alone.out
    text = "\n".join(section(run.err, "Compilation"))
    assert text.startswith("Time in torch.compile: ")
    assert " compiled " in "\n".join(section(run.err, "Class"))


TRAIN_30 = (
    HEAD
    + """
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
busy(300)
for _ in range(30):
    busy(2)
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
)


def test_the_first_step_can_be_left_out(tmp_path: Path) -> None:
    """And what was printed can be shown again."""
    saved, program = str(tmp_path / "profile.json"), written(tmp_path, TRAIN_30)
    kept = with_tables("--memory", "--save", saved, program).err
    assert seconds(line(kept, "other: outside modules").split(":")[2]) == 0.36
    left_out = with_tables("--ignore-first-call", program).err
    measured, below = line(left_out, "Time measured").split(", ")
    assert (seconds(measured), seconds(below)) == (0.36, 0.058)

    again = profiled(
        "show", saved, "--format", "report", "--max-rows", "20", COLUMNS="120"
    )
    lines = again.out.removeprefix(TITLE.lstrip()).splitlines()
    # Printed above the tables at exit, and in them here.
    told = [line for line in lines if re.match("Measuring took|.* were measured", line)]
    assert told
    shown = kept.partition(TITLE)[2].splitlines()
    # That of the file has what making the report took, too.
    (since,) = (line for line in shown if line.startswith("Time since "))
    told.append(next(line for line in lines if line.startswith("Time since ")))
    shown.remove(since)
    assert [line for line in lines if line not in told] == shown


def test_how_many_steps_were_measured_is_said(tmp_path: Path) -> None:
    program = ticking(TRAIN_30.replace("range(30)", "range(300)"))
    some = ("--steps", "2", "--every", "30")
    run = with_tables(*some, written(tmp_path, program))
    assert "\n20 of 300 steps measured: first " in run.err
    assert "\nmeasured steps took " in run.err
    assert re.search(r"\nLinear .* Py +20\b", run.err)  # calls, in measured steps
