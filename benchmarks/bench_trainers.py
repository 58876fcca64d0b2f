"""What the trainers' own profilers cost, next to ours: steps of the small GPT-2 in the
Trainers of Lightning and transformers; and TraceML next to `profile()` in a loop.

Targets: our callbacks take 2 % at most, their budget; `Profile.scalars()`, which they
may log, takes 5 ms.

TraceML watches whole processes, and is started by a command of its own: ``--peers``
names the Python of an environment that has traceml-ai and torch.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import results
import torch
from bench import error_of_median, ratios, rounds, times_table
from models import gpt2_small

from torchprof_hooks import profile

#: Steps of one run of a trainer that count, after those that do not: so many that a
#: budget of 2 % measures some of them.
STEPS, WARM_UP = 150, 5
#: Runs of each, and how many of these are looked at together.
TURNS, TOGETHER = 16, 2
#: Processes of TraceML, and steps of each.
PROCESSES, LOOP_STEPS = 5, 300

Run = Callable[[], int]


class Stopwatch:
    """Nanoseconds between two steps of a run."""

    def __init__(self) -> None:
        self._steps = 0
        self.elapsed_ns = 0

    def step(self) -> None:
        """A step begins."""
        if self._steps == WARM_UP:
            self.elapsed_ns = -perf_counter_ns()
        if self._steps == WARM_UP + STEPS:
            self.elapsed_ns += perf_counter_ns()
        self._steps += 1


def watcher(base: type, event: str, watch: Stopwatch) -> Any:
    """A callback of a trainer that hears of the beginning of steps."""

    def step(*_: Any, **__: Any) -> None:
        watch.step()

    return type("Watching", (base,), {event: step})()


def batches() -> torch.utils.data.DataLoader[Any]:
    tokens = torch.randint(0, 256, (4 * (WARM_UP + STEPS + 1), 33))
    return torch.utils.data.DataLoader(tokens, batch_size=4)  # type: ignore[arg-type]


def lightning_runs() -> Iterator[tuple[str, Run]]:
    """By what is given to the Trainer of Lightning."""
    import pytorch_lightning as lightning
    from pytorch_lightning.profilers import AdvancedProfiler, SimpleProfiler

    from torchprof_hooks.integrations.lightning import (
        TorchprofCallback,
        TorchprofProfiler,
    )

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    model = gpt2_small().model

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            found = self.model(batch[:, :-1]).flatten(0, 1)
            return torch.nn.functional.cross_entropy(found, batch[:, 1:].flatten())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-4)

    def run(profiler: Any, callbacks: Sequence[Any]) -> int:
        watch = Stopwatch()
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            profiler=profiler,
            callbacks=[
                watcher(lightning.Callback, "on_train_batch_start", watch),
                *callbacks,
            ],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), batches())
        return watch.elapsed_ns

    def profiled(make: Callable[..., Any]) -> int:
        return run(make(dirpath="."), [])

    yield "bare", partial(run, None, [])
    callback = TorchprofCallback(report=False)
    yield "TorchprofCallback", partial(run, None, [callback])
    ours, simple, advanced = TorchprofProfiler, SimpleProfiler, AdvancedProfiler
    for make in (ours, simple, advanced):
        yield make.__name__, partial(profiled, make)


def transformers_runs() -> Iterator[tuple[str, Run]]:
    """By what is given to the Trainer of transformers, which has no profiler."""
    import transformers

    from torchprof_hooks.integrations.transformers import TorchprofCallback

    config = transformers.GPT2Config(
        vocab_size=256,
        n_positions=64,
        n_embd=64,
        n_layer=6,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.GPT2LMHeadModel(config)
    tokens = torch.randint(0, 256, (4 * (WARM_UP + STEPS + 1), 32))
    data = [{"input_ids": each, "labels": each} for each in tokens]

    def run(callbacks: Sequence[Any]) -> int:
        watch = Stopwatch()
        arguments = transformers.TrainingArguments(
            output_dir=".",
            per_device_train_batch_size=4,
            num_train_epochs=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=True,
        )
        trainer = transformers.Trainer(
            model,
            arguments,
            train_dataset=data,
            callbacks=[watcher(transformers.TrainerCallback, "on_step_begin", watch)],
        )
        for callback in callbacks:
            trainer.add_callback(callback)
        trainer.train()
        return watch.elapsed_ns

    yield "bare", partial(run, [])
    yield "TorchprofCallback", partial(run, [TorchprofCallback(report=False)])


def in_turns(runs: Mapping[str, Run]) -> dict[str, list[int]]:
    """Nanoseconds of each run; a first one of each is dropped."""
    times: dict[str, list[int]] = {name: [] for name in runs}
    printed = sys.stdout
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here = Path.cwd()
        os.chdir(folder)
        try:
            for turn in range(rounds(TURNS) + 1):
                for name, run in runs.items():
                    sys.stdout = StringIO()  # trainers tell how they train
                    elapsed_ns = run()
                    sys.stdout = printed
                    if turn:
                        times[name].append(elapsed_ns)
        finally:
            sys.stdout = printed
            os.chdir(here)
    return times


def loop(tool: str) -> None:
    """Print the median nanoseconds of a step of a loop that is watched by a tool."""
    workload = gpt2_small()
    traced: Callable[[], Any] = nullcontext
    if tool == "TraceML":
        import traceml_ai

        traceml_ai.init(mode="auto")
        traced = partial(traceml_ai.trace_step, workload.model)
    times = []
    with profile() if tool == "profile()" else nullcontext():
        for _ in range(LOOP_STEPS):
            began_ns = perf_counter_ns()
            with traced():
                workload.step()
            times.append(perf_counter_ns() - began_ns)
    print("median:", round(median(times)))


def loop_times(python: str) -> dict[str, list[int]]:
    """Of processes that take turns."""
    tools = ("bare", "TraceML", "profile()")
    times: dict[str, list[int]] = {tool: [] for tool in tools}
    for _ in range(rounds(PROCESSES)):
        for tool in tools:
            start = [python, __file__, "--loop", tool]
            with tempfile.TemporaryDirectory() as folder:
                if tool == "TraceML":
                    command = str(Path(python).with_name("traceml"))
                    logs = ["--logs-dir", folder, "--run-name", "loop"]
                    start = [python, command, "run", __file__, *logs]
                    start += ["--args", "--loop", tool]
                path = str(Path(__file__).parent.parent)
                environment = {**os.environ, "PYTHONPATH": path}
                done = subprocess.run(
                    start, capture_output=True, text=True, check=False, env=environment
                )
            printed = done.stdout.rpartition("median:")[2].split()
            if not printed:
                print(f"{tool}: not there ({done.stderr.strip()[-200:]})")
                return {}
            times[tool].append(int(printed[0]))
    return times


def scalars_table() -> results.Table:
    """Of the profile of a step, with functions and memory."""
    workload = gpt2_small()
    with profile(functions=True, memory=True) as prof:
        for _ in range(5):
            workload.step()
    times = []
    for _ in range(rounds(TURNS)):
        measured = prof.profile  # a new one: nothing is known of its rows
        began_ns = perf_counter_ns()
        count = len(measured.scalars())
        times.append(perf_counter_ns() - began_ns)
    rows: list[list[results.Cell]] = [
        ["GPT-2 small", count, f"{median(times) / 1e6:.2f}"]
    ]
    return results.Table("Profile.scalars()", ["", "numbers", "ms"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=sys.executable, help="the Python of TraceML")
    parser.add_argument("--loop", help="run this, and no more")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.loop:
        loop(args.loop)
        return
    tables, figures = [], {}
    for trainer, found in (
        ("Lightning", lightning_runs()),
        ("transformers", transformers_runs()),
    ):
        times = in_turns(dict(found))
        title = f"Step of the small GPT-2 in the Trainer of {trainer}"
        scale = 1e-3 / STEPS
        table = times_table(title, times, scale=scale, unit="us", baseline="bare")
        slowdowns = ratios(times, "TorchprofCallback", "bare", TOGETHER)
        slowdown, error = median(slowdowns), error_of_median(slowdowns)
        figures[trainer] = {"slowdown": slowdown, "error": error, "budget": 0.02}
        note = (
            f"Medians of {rounds(TURNS)} runs of {STEPS} steps. TorchprofCallback took "
            f"{slowdown:.3f} \N{PLUS-MINUS SIGN} {error:.3f} of the bare runs beside."
        )
        tables.append(replace(table, notes=[note]))
    times = loop_times(args.peers)
    if times:
        title = "Step of the small GPT-2 in a loop, medians of processes"
        tables.append(times_table(title, times, scale=1e-3, unit="us", baseline="bare"))
    tables.append(scalars_table())
    results.save("trainers", tables, figures)


if __name__ == "__main__":
    main()
