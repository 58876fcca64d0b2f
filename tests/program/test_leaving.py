"""What a program waits for when it has ended: counted, and said."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.programs import TORCH, profiled, written
from torchprof_hooks.capture.functions import flop_count
from torchprof_hooks.capture.functions.call_description import CallDescription
from torchprof_hooks.capture.functions.flop_count import FlopCount
from torchprof_hooks.capture.functions.products import Flops, flops_by_shapes
from torchprof_hooks.capture.overhead import calibration
from torchprof_hooks.capture.sampling.estimates.program import program_profile
from torchprof_hooks.capture.sampling.estimates.strata import Strata
from torchprof_hooks.documents.build.theano import program_text
from torchprof_hooks.profiles import data, rows
from torchprof_hooks.profiles.cells import Cells, Infos
from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.program.flags import Flags
from torchprof_hooks.program.recorder import make_sampler


class LanguageModel(nn.Module):
    """The LSTM of a hundred tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(50, 8)
        self.rnn = nn.LSTM(8, 8, 2, dropout=0.2)
        self.decoder = nn.Linear(8, 50)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        output, _ = self.rnn(self.encoder(words))
        decoded: torch.Tensor = self.decoder(output)
        return decoded.log_softmax(-1)


def language_model() -> None:
    model = LanguageModel()
    optimizer = torch.optim.Adam(model.parameters())
    for length in [*[35] * 6, 12]:  # the last batch is shorter
        words = torch.zeros(length, 2, dtype=torch.long)
        loss = nn.functional.nll_loss(model(words).view(-1, 50), words.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def many_shapes() -> None:
    layers = nn.ModuleList(nn.Linear(n, n + 1) for n in range(1, 40))
    norms = nn.ModuleList(nn.LayerNorm(n + 1) for n in range(1, 40))
    optimizer = torch.optim.SGD(layers.parameters(), 0.1)
    for batch in range(1, 5):
        value = torch.ones(batch, 1)
        for layer, norm in zip(layers, norms, strict=True):
            value = norm(layer(value)) * torch.ones(batch, 1)
        (value @ value.mT).sum().backward()
        optimizer.step()


def sampled(
    program: Callable[[], None], flop_count: FlopCount, max_overhead: float = 100
) -> Strata:
    sampler = make_sampler(Flags(every=1, max_overhead=max_overhead))
    sampler.start()
    try:
        program()
    finally:
        sampler.stop()
    return sampler.strata(flop_count)


@pytest.mark.parametrize(
    ("program", "functions"),
    [(language_model, {"lstm", "linear"}), (many_shapes, {"linear", "matmul"})],
)
def test_nothing_is_run_again_to_count_operations(
    program: Callable[[], None], functions: set[str]
) -> None:
    count = FlopCount(patience_s=0.2)
    rows = sampled(program, count).whole.rows("function")
    assert {row.name for row in rows if row.phases["forward"].flops} == functions
    assert {row.name for row in rows if row.phases["backward"].flops} == functions
    assert (count.runs, count.left_out) == (0, set())


def test_there_is_one_calibration_for_all_trackers() -> None:
    """There are five, of three kinds: of functions, of modules and of phases."""
    calibration._in_a_thread.cache_clear()
    for max_overhead in (100, 0):  # with 0, most steps are timed in phases
        sampled(language_model, FlopCount(), max_overhead)
        sampled(many_shapes, FlopCount(), max_overhead)
        assert calibration._in_a_thread.cache_info().misses == 1


def test_each_grouping_of_the_report_is_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    def make(cells: Cells, infos: Infos, by: Grouping) -> tuple[rows.Row, ...]:
        made.append(by)
        return group(cells, infos, by)

    program = program_profile(sampled(language_model, FlopCount()))
    group = rows.group_rows
    monkeypatch.setattr(data, "group_rows", make)
    assert "Apply" in program_text(program)
    # Calls twice: single shapes for tips, and ranges of them for the table.
    assert sorted(made) == ["call", "call", "class", "function"]


def test_each_call_is_looked_at_once_for_all_strata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def look(call: CallDescription) -> Flops | None:
        seen.append(call)
        return flops_by_shapes(call)

    monkeypatch.setattr(flop_count, "flops_by_shapes", look)
    sampled(language_model, FlopCount())
    assert len(seen) == len(set(seen)) > 5


EINSUM = """
import atexit, sys
atexit.register(lambda: print("torch._dynamo" in sys.modules, "sympy" in sys.modules))
import torch
model = torch.nn.Linear(4, 4)
for _ in range(3):
    output = model(torch.ones(2, 4))
    torch.einsum("ij,jk->ik", output, torch.ones(4, 3)).sum().backward()
"""


def test_what_is_left_out_for_it_is_said(tmp_path: Path) -> None:
    """The report is made before the program's own last words, which come first."""
    run = profiled("--full", written(tmp_path, EINSUM), loaded=TORCH)
    assert (run.code, run.reports) == (0, 1)
    assert "GFLOP/s without einsum: " in run.err
    assert run.out == "False False\n"


def test_what_beginning_and_leaving_took_is_said(tmp_path: Path) -> None:
    run = profiled(
        "--full", written(tmp_path, "import time; time.sleep(0.5)\n" + EINSUM)
    )
    said = (
        r"\n\nIt took (\d+\.\d{3})s to measure, (\d+\.\d{3})s to begin, and "
        r"(\d+\.\d{3})s to make this report"
    )
    found = re.search(said, run.err)
    assert found is not None
    assert all(float(seconds) > 0 for seconds in found.groups())
    since = re.search(r"Time since torchprof_hooks was loaded: ([\d.]+)s", run.err)
    measured = re.search(r"Time measured: ([\d.]+)s", run.err)
    assert since is not None
    assert measured is not None
    assert float(since[1]) - float(measured[1]) >= 0.5  # and what importing torch took


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
    options = ("--full", "--save", str(tmp_path / "profile.json"), "--flush-secs=0.05")
    run = profiled(*options, written(tmp_path, SLOW_FILES))
    found = re.search(r"It took (\d+\.\d{3})s to measure", run.err)
    assert found is not None
    assert float(found[1]) >= 0.2


GARBAGE = """
import atexit, gc
def last_words():
    gc.callbacks.clear()
    print(gc.isenabled(), len(seen))
atexit.register(last_words)
import torch
torch.nn.Linear(4, 4)(torch.ones(2, 4))
seen = []
gc.set_threshold(100)
gc.callbacks.append(lambda phase, info: seen.append(phase))
"""


def test_no_garbage_is_looked_for_while_the_report_is_made(tmp_path: Path) -> None:
    """There, the program is at its largest."""
    run = profiled(written(tmp_path, GARBAGE))
    enabled, seen = run.out.split()
    assert enabled == "True"
    assert int(seen) < 10  # a hundred without it
