"""Samples in the documentation: what a command prints for a stored profile, and what an
example has printed.

A block of text in a page is a sample if a comment above it has the command, and, where
not all of its output is shown, the beginnings of the paragraphs that are (of JSON, of
its members)::

    <!-- sample: report docs/samples/char_lm.json -->
    <!-- sample: show docs/samples/char_lm.json --by class -->
    <!-- sample: show docs/samples/exit_report.json --format report | Class | Ops -->
    <!-- output: shared_input -->

The last of these is what ``examples/shared_input.py`` printed when it was recorded.

``python -m tests.documents.docs_samples`` writes what the commands print now into the
pages; with ``--record NAME ...`` it measures the stored profiles, and runs the
examples, anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from unittest.mock import patch

from torchprof_hooks.profile_type import Profile
from torchprof_hooks.program import cli

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "docs" / "samples"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
#: Those whose output is shown.
EXAMPLES: Final = ("shared_input", "count_nans", "scalars", "trainer", "generate")
#: What is said of a program in little memory, by its arguments.
LITTLE_MEMORY: Final = {
    "ran_out": "--memory 200",
    "smaller_batch": "--batch-size 8",
    "checkpointed": "--checkpoint --memory 200",
}
#: And of a slow one.
SLOW: Final = {
    "slow_data": "",
    "slow_module": "--encode-once",
    "slow_optimizer": "--encode-once --layer-norm",
}
#: And of a compiled one, without graph breaks and with them.
GRAPH_BREAKS: Final = {"whole_graph": "", "broken_graph": "--look"}
#: The slow one, and what it becomes.
_FASTER: Final = "faster"
_FASTER_RUNS: Final = (
    *("--run", "examples/slow.py"),
    "examples/slow.py --encode-once --layer-norm --fused",
    *("-n", "5", "--max-rows", "6"),
)
#: What the Python below "The largest batch" prints of the first.
_LARGEST: Final = "largest_batch"
#: What is predicted of models, and measured.
_PREDICTIONS: Final = "memory_predictions"
#: What `compare --run` says of a program, and of the same with a wider layer.
_COMPARED: Final = "compared"
_OF_PROGRAM: Final = "exit_report"
#: Show what measuring takes, which a clock of Python's makes dearer. They have to be
#: recorded where nothing else runs.
_OF_COST: Final = (_OF_PROGRAM, "some_steps")
#: The profiles of several ranks, in a folder of that name.
_RANKS: Final = "ranks"
_LAUNCHER: Final = ("torch.distributed.run", "--standalone", "--nproc-per-node", "4")
#: Characters in a line of a sample; longer ones are cut, like names in reports are.
WIDTH: Final = 120
_SAMPLE = re.compile(
    r"(<!-- ((?:sample|output): [^\n]*) -->\n```text\n)(.*?)(?=```\n)", re.DOTALL
)

#: The clock of the thread's own work, not that of the wall: what else the machine does
#: does not show. A function of Python, which the native core calls, too.
_CLOCK: Final = """
import runpy, sys, time
time.perf_counter_ns = lambda clock=time.thread_time_ns: clock()
"""
#: On torch's own CUDA code, whose environment `make test-cuda` makes.
_OF_DEVICE: Final = "device_idle"
_CUDA: Final = str(ROOT / ".venv-cuda-2.15.0" / "bin" / "python")
_IDLE: Final = "from tests.devices.cuda.decoder import main\nmain({0!r})"
#: {0}: arguments of the demo.
_DEMO: Final = """
sys.argv = ["examples/char_lm.py", *{0}]
sys.path.insert(0, "examples")
runpy.run_path("examples/char_lm.py", run_name="__main__")
"""
_SOME_STEPS: Final = """
sys.path.insert(0, "benchmarks")
import torch, torchprof_hooks, models
step, _ = models.gpt2_step()
step()
with torchprof_hooks.profile(every=100, steps=2) as prof:
    for _ in range(1000):
        step()
prof.profile.save({0!r})
"""
#: What torch.compile takes is measured by torch, with a clock of its own.
_COMPILED: Final = """
time.time_ns = time.perf_counter_ns
import torch, torchprof_hooks
torchprof_hooks.enable(save={0!r})
sys.argv = ["compiled.py"]

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(64, 256), torch.nn.Linear(256, 8)
    def forward(self, x):
        return self.out(torch.nn.functional.gelu(self.hidden(x)))

torch._dynamo.config.automatic_dynamic_shapes = False
torch._inductor.config.fx_graph_cache = False
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(model)
for batch_size in (8, 8, 16, 16):
    compiled(torch.randn(batch_size, 64)).square().mean().backward()
    optimizer.step()
"""
#: Reads a large file now and then, saves the model twice, and collects garbage once.
_SLOW_STEPS: Final = """
import gc, io, torch, torchprof_hooks
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

class Shards(IterableDataset):
    def __iter__(self):
        for number in range(1, 301):
            if number % 90 == 0:
                torch.randn(1_500_000).sort()
            yield torch.randn(64, 256)

class Net(nn.Sequential):
    pass

objects = [[number] for number in range(1_500_000)]
model = Net(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.Linear(1024, 8))
optimizer = torch.optim.AdamW(model.parameters())
gc.collect()
gc.disable()
with torchprof_hooks.profile() as prof:
    for number, batch in enumerate(DataLoader(Shards(), batch_size=None)):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number in (99, 199):
            for _ in range(8):
                torch.save(optimizer.state_dict(), io.BytesIO())
        if number == 240:
            gc.collect()
prof.profile.save({0!r})
"""

_TRAIN = """
import torch
from torch import nn

WIDTHS = [512, 512, 512]

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(128), nn.Linear(128, width)
        self.gelu, self.down = nn.GELU(), nn.Linear(width, 128)
    def forward(self, x):
        return x + self.down(self.gelu(self.up(self.norm(x))))

net = nn.Sequential(*map(Block, WIDTHS), nn.Linear(128, 64))
optimizer = torch.optim.AdamW(net.parameters(), fused=True)
for _ in range(60):
    optimizer.zero_grad()
    net(torch.ones(512, 128)).square().mean().backward()
    optimizer.step()
"""


def _programs(path: str) -> dict[str, str]:
    """By the names of the profiles in docs/samples, what makes them."""
    save = ["--save", path]
    return {
        "char_lm": _DEMO.format(["--steps", "100", *save]),
        "char_lm_compiled": _DEMO.format(["--steps", "100", "--compile", *save]),
        "char_lm_functions": _DEMO.format(
            ["--steps", "40", "--functions", "--memory", *save]
        ),
        _OF_PROGRAM: "import torchprof_hooks\n"
        f"torchprof_hooks.enable(save={path!r}, profile_memory=True)"
        + _DEMO.format(["--steps", "100"]),
        "some_steps": _SOME_STEPS.format(path),
        "compiled": _COMPILED.format(path),
        _OF_DEVICE: _IDLE.format(path),
        "slow_steps": _SLOW_STEPS.format(path),
    }


def record(names: Sequence[str]) -> None:
    """Measure these profiles and run these examples, or all, in one thread, with the
    native core."""
    of_texts = _texts()
    for name in names or (*_programs(""), _RANKS, *of_texts):
        if name in of_texts:
            (SAMPLES / f"{name}.txt").write_text(of_texts[name](), "utf-8")
        elif name == _RANKS:
            _record_ranks()
        else:
            path = f"docs/samples/{name}.json"
            has_own_clock = name in (*_OF_COST, _OF_DEVICE)
            clock = "import runpy, sys" if has_own_clock else _CLOCK
            python = _CUDA if name == _OF_DEVICE else sys.executable
            _run("-c", f"{clock}\n{_programs(path)[name]}", python=python)
            _write_in_one_line(ROOT / path)


def _texts() -> dict[str, Callable[[], str]]:
    """What makes the samples that are texts, by name."""
    captured = partial(_run, stdout=subprocess.PIPE)
    example = "runpy.run_path('examples/{}.py', run_name='__main__')"
    found: dict[str, Callable[[], str]] = {
        name: partial(captured, "-c", _CLOCK + example.format(name))
        for name in EXAMPLES
    }
    programs = {"little_memory": LITTLE_MEMORY, "slow": SLOW}
    for program, runs in {**programs, "graph_breaks": GRAPH_BREAKS}.items():
        for name, arguments in runs.items():
            found[name] = partial(report_of, arguments.split(), program=program)
    predictions = "tests.attribution.checkpointed_models"
    return {
        **found,
        _LARGEST: _largest_batch,
        _PREDICTIONS: partial(captured, "-m", predictions),
        _COMPARED: _compared,
        _FASTER: partial(_comparison, _FASTER_RUNS, ROOT),
    }


def report_of(
    arguments: Sequence[str], *flags: str, program: str = "little_memory"
) -> str:
    """What is said of an example, without its own output."""
    if program == "little_memory":
        flags = ("--memory", "--full", *flags)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torchprof_hooks", *flags),
            *(f"examples/{program}.py", *arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": str(WIDTH)},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    begin = re.search(r"^torchprof_hooks:\s+examples", done.stdout, re.MULTILINE)
    assert begin is not None, done.stdout
    lines = done.stdout[begin.start() :].splitlines()
    return "".join(f"{line[:WIDTH].rstrip()}\n" for line in lines)


def _largest_batch() -> str:
    page = (ROOT / "docs" / "memory.md").read_text("utf-8")
    [code] = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    with TemporaryDirectory() as folder:
        for size in "8", "16":
            report_of(["--batch-size", size], "--save", f"{folder}/{size}.json")
        script = f"import os, torchprof_hooks\nos.chdir({folder!r})\n{code}"
        return _run("-c", script, stdout=subprocess.PIPE)


def _compared() -> str:
    with TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(_TRAIN)
        wider = _TRAIN.replace("[512, 512, 512]", "[512, 592, 512]")
        Path(folder, "wider.py").write_text(wider)
        runs = ("--run", "train.py", "wider.py", "--max-rows", "8")
        return _comparison(runs, Path(folder))


def _comparison(options: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "torchprof_hooks", "compare", *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": str(WIDTH)},
        check=False,  # it may be slower
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def _record_ranks() -> None:
    folder = f"docs/samples/{_RANKS}"
    saved = ("--save", str(ROOT / folder / "profile.json"))
    _run("-m", *_LAUNCHER, "examples/ranks.py", *saved)
    for path in (ROOT / folder).iterdir():
        content = json.loads(path.read_text("utf-8"))
        content["provenance"][0].update(host="node0", command="examples/ranks.py")
        path.write_text(json.dumps(content), "utf-8")
        _write_in_one_line(path)


def _run(
    *arguments: str,
    stdout: int | None = None,
    python: str = sys.executable,
) -> str:
    chosen = {"OMP_NUM_THREADS": "1", "TORCHPROF_HOOKS_CORE": "native"}
    done = subprocess.run(
        [python, *arguments],
        cwd=ROOT,
        env={**os.environ, **chosen},
        check=True,
        stdout=stdout,
        text=True,
    )
    return done.stdout or ""


def _write_in_one_line(path: Path) -> None:
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n", "utf-8")


def printed(command: str) -> str:
    """What a command for files prints, or the paragraphs of it that are named; or what
    an example has printed."""
    kind, command = command.split(": ", maxsplit=1)
    arguments, *beginnings = command.split(" | ")
    if kind == "output":
        text = (SAMPLES / f"{arguments}.txt").read_text("utf-8")
        return "\n\n".join(_chosen(text, beginnings)) + "\n" if beginnings else text
    if arguments.startswith("report "):  # as `print_report()` prints it
        return Profile.load(ROOT / arguments.removeprefix("report ")).report() + "\n"
    out = StringIO()
    with redirect_stdout(out), patch.dict(os.environ, COLUMNS=str(WIDTH)):
        # 1: something is slower.
        assert cli.main(_with_root(arguments)) in (0, 1), command
    longest = None if "--format md" in arguments else WIDTH  # it has no width
    lines = "\n".join(line[:longest].rstrip() for line in out.getvalue().split("\n"))
    if not beginnings:
        return lines
    if lines.startswith("{"):
        return "".join(_members(lines.splitlines(), beginnings))
    return "\n\n".join(_chosen(lines, beginnings)) + "\n"


def _with_root(arguments: str) -> list[str]:
    return [
        str(ROOT / part) if part.startswith("docs/") else part
        for part in arguments.split()
    ]


def _members(lines: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Members of JSON, by their names as they are written there; of several with one
    name, the outermost."""
    depths = [len(line) - len(line.lstrip()) for line in lines]
    for name in names:
        found = [n for n, line in enumerate(lines) if line.lstrip().startswith(name)]
        first = min(found, key=depths.__getitem__)
        end = first + 1
        while lines[first][-1] in "{[" and depths[end] > depths[first]:
            end += 1
        last = end + (lines[first][-1] in "{[")
        yield from (f"{line}\n" for line in lines[first:last])


def _chosen(text: str, beginnings: Sequence[str]) -> Iterator[str]:
    paragraphs = text.strip("\n").split("\n\n")
    for beginning in beginnings:
        yield next(each for each in paragraphs if each.startswith(beginning))


def with_samples(page: str) -> str:
    """A page with what the commands above its samples print now."""
    return _SAMPLE.sub(lambda found: found[1] + printed(found[2]), page)


def samples(page: str) -> list[str]:
    """The samples in a page."""
    return [text.rstrip("\n") for *_, text in _SAMPLE.findall(page)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        record(sys.argv[2:])
    for path in PAGES:
        path.write_text(with_samples(path.read_text("utf-8")), "utf-8")
