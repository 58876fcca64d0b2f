"""Unmodified programs of the frameworks that people train with, and of torchrun."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.running import TITLE, TRAINING, Run, plain
from torchprof_hooks import Profile
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Grouping

SCRIPTS: Final = Path(__file__).parent / "scripts"
OURS: Final = ("-m", "torchprof_hooks", "--tables")
LAUNCHER: Final = ("-m", "torch.distributed.run", "--standalone")
STEPS: Final = 12
#: What lightning_fit.py plants in each step.
FORWARD_NS, BACKWARD_NS, LOADING_NS = 10_000_000, 15_000_000, 8_000_000


LIGHTNING: Final = str(SCRIPTS / "lightning_fit.py")
IMPORTS: Final = ("pytorch_lightning",)


class Runs(NamedTuple):
    """A program on its own, and by us."""

    alone: Run
    ours: Run
    profile: Profile


def each_of(*commands: tuple[str, ...], loaded: tuple[str, ...] = ()) -> list[Run]:
    """Python with each of these arguments, without any downloads."""
    offline: dict[str, Any] = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return [
        plain(*command, loaded=(*TRAINING, *loaded), **offline) for command in commands
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    saved = folder / "profile.json"
    command = (LIGHTNING, str(folder / "output"))
    alone, ours = each_of(
        command, (*OURS, "--save", str(saved), *command), loaded=IMPORTS
    )
    assert alone.code == 0, alone.err
    return Runs(alone, ours, Profile.load(saved))


def calls(profile: ProfileData, by: Grouping = "module") -> Mapping[str, int]:
    return {row.name: row.calls for row in profile.rows(by)}


def test_it_ends_as_without_us_with_one_report_and_no_other_word(runs: Runs) -> None:
    assert runs.alone.out.count("\n") == STEPS  # losses, to the last digit
    run = runs.ours
    assert (run.code, run.out, run.reports) == (0, runs.alone.out, 1)
    assert run.before_report == runs.alone.err


def test_the_report_has_the_model_and_the_optimizer(runs: Runs) -> None:
    model, inner = "Net", "Slow"
    profile, report = runs.profile, runs.ours.err.split(TITLE)[1].splitlines()
    for name, phase in ((model, ""), (inner, ""), (inner, " backward ")):
        rows = [line for line in report if line.startswith(f"{name} ")]
        assert any(phase in row for row in rows), (name, phase)
    # By a clock of the program's own, its optimizer takes no time, and has no line.
    optimizers = [row for row in profile.rows() if row.kind == "optimizer"]
    has_line = any(line.startswith("  optimizers: ") for line in report)
    assert has_line == any(row.self_ns > 0 for row in optimizers)
    counts = {calls(profile)[name] for name in ("(optimizer) AdamW", model)}
    assert (profile.steps, counts) == (STEPS, {STEPS})
    assert "\n(optimizer) AdamW " in runs.ours.err


def test_passes_inside_of_an_optimizers_step_are_not_its_time(runs: Runs) -> None:
    """Lightning gives optimizers a closure which calls the model and backward()."""
    rows = {row.name: row for row in runs.profile.rows()}
    slow = rows["Net.layers.1"].phases
    assert slow["forward"].self_ns == STEPS * FORWARD_NS
    assert slow["backward"].self_ns == STEPS * BACKWARD_NS
    assert rows["(optimizer) AdamW"].self_ns == 0
    found = runs.profile
    assert found.attributed_ns == STEPS * (FORWARD_NS + BACKWARD_NS)
    assert found.wall_ns == STEPS * (FORWARD_NS + BACKWARD_NS + LOADING_NS)


def test_a_signal_that_lightning_handles_ends_the_program_well(tmp_path: Path) -> None:
    command = (LIGHTNING, str(tmp_path), "--sigterm")
    alone, run = each_of(command, (*OURS, *command), loaded=IMPORTS)
    assert alone.out.count("\n") == 6
    assert (run.code, run.out) == (alone.code, alone.out)
    assert (run.before_report, run.reports) == (alone.err, 1)


def printed_losses(output: str) -> list[str]:
    """Gloo of torch 2.8 writes there, too."""
    return re.findall(r"-?\d+\.\d{4,}(?:e-?\d+)?", output)


def every_step_into(folder: Path) -> tuple[str, ...]:
    saved, report = folder / "profile.json", folder / "report.txt"
    return (*OURS, "--save", str(saved), "--destination", str(report))


def test_ranks_of_torchrun(tmp_path: Path) -> None:
    script = str(SCRIPTS / "two_ranks.py")
    options = every_step_into(tmp_path)
    [ranks] = each_of((*LAUNCHER, "--nproc-per-node=2", *options, script))
    assert ranks.code == 0, ranks.err
    losses = printed_losses(ranks.out)
    assert len(losses) == 2
    assert len(set(losses)) == 1
    assert ranks.reports == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}-rank{rank}.{suffix}"
        for name, suffix in (("profile", "json"), ("report", "txt"))
        for rank in (0, 1)
    }
    told = [(tmp_path / f"report-rank{rank}.txt").read_text() for rank in (0, 1)]
    assert ["2 of 2 ranks of" in report for report in told] == [True, False]
    for rank in (0, 1):
        assert told[rank].count(TITLE) == 1
        found = calls(Profile.load(tmp_path / f"profile-rank{rank}.json"))
        assert found["DistributedDataParallel"] == found["(optimizer) SGD"] == 6
        assert "DistributedDataParallel.module.0" in found
