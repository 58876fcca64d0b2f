"""The callback for Lightning, with the real Trainer, by both of its package names."""

from __future__ import annotations

import csv
import importlib
import pickle
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fake_clock import MS
from tests.integrations.burning import (
    BACKWARD_MS,
    BATCH,
    FORWARD_MS,
    LOADING_MS,
    Layer,
    Points,
    totals,
)
from tests.running import python
from tests.thorough import IS_THOROUGH
from torchprof_hooks import Profile, load_ranks, profile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("clock"),
    pytest.mark.filterwarnings("ignore"),  # Lightning has advice on workers
]

STEPS, ACCUMULATED, VALIDATED = 4, 2, 3


PACKAGES = ("lightning.pytorch", "pytorch_lightning")


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Importing them adds to the filters for warnings, of which tests leave none."""
    for package in PACKAGES if IS_THOROUGH else PACKAGES[1:]:
        with suppress(ImportError):
            importlib.import_module(package)


@pytest.fixture(
    params=[pytest.param(PACKAGES[0], marks=pytest.mark.thorough), PACKAGES[1]]
)
def package(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param.partition(".")[0], reason="of the extra `test`")
    name: str = request.param
    return name


@pytest.fixture
def ours(package: str) -> Any:
    """Our module, as if it was imported by a program that uses this package."""
    importlib.import_module(package)
    module = importlib.import_module("torchprof_hooks.integrations.lightning")
    return importlib.reload(module)


class Run:
    """A fit with the Trainer of one package."""

    def __init__(self, package: str, folder: Path) -> None:
        self.package = importlib.import_module(package)
        self.folder = folder
        self.losses: list[float] = []
        self.trainer: Any = None

    def model(self, *, is_manual: bool = False) -> Any:
        losses, module = self.losses, self.package.LightningModule

        class Net(module):  # type: ignore[misc, valid-type]
            def __init__(self) -> None:
                super().__init__()
                self.layer = Layer()
                self.automatic_optimization = not is_manual

            def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
                loss: torch.Tensor = self.layer(batch).square().mean()
                losses.append(loss.item())
                if is_manual:
                    self.manual_backward(loss)
                    if index % ACCUMULATED:
                        optimizer = self.optimizers()
                        optimizer.step()
                        optimizer.zero_grad()
                return loss

            def validation_step(self, batch: torch.Tensor, index: int) -> None:
                self.layer(batch)

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.parameters(), 0.1)

        return Net()

    def fit(
        self, *, is_manual: bool = False, bad: int | None = None, **options: Any
    ) -> Run:
        settings = {
            "default_root_dir": str(self.folder),
            "max_epochs": 1,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "accumulate_grad_batches": 1 if is_manual else ACCUMULATED,
            "val_check_interval": STEPS,  # in batches: twice in the epoch
            **options,
        }
        self.trainer = self.package.Trainer(**settings)

        def loader(count: int, bad: int | None = None) -> Any:
            return torch.utils.data.DataLoader(Points(count, bad), batch_size=BATCH)

        batches = STEPS * ACCUMULATED
        model = self.model(is_manual=is_manual)
        validated = loader(BATCH * VALIDATED)
        self.trainer.fit(model, loader(BATCH * batches, bad), validated)
        return self


def check(found: Profile) -> None:
    """Steps, and validation: twice in the epoch."""
    calls, validated = STEPS * ACCUMULATED, 2 * VALIDATED
    assert found.steps == STEPS
    assert found.step_times.evaluations == validated
    [name] = {row.name for row in found.rows() if row.class_name == "Layer"}
    every = calls + validated
    assert totals(found, name, "forward") == (every, every * FORWARD_MS)
    assert totals(found, name, "backward") == (calls, calls * BACKWARD_MS)
    assert found.phase_times_ns()["data"] == every * LOADING_MS * MS


@pytest.mark.parametrize("is_manual", [False, True], ids=["automatic", "manual"])
def test_a_callback_measures_training_and_validation(
    ours: Any,
    package: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_manual: bool,
) -> None:
    callback = ours.TorchprofCallback(profile())
    run = Run(package, tmp_path).fit(is_manual=is_manual, callbacks=[callback])
    out = capsys.readouterr().out
    bare = Run(package, tmp_path).fit(is_manual=is_manual)
    assert run.losses == bare.losses
    check(callback.profiler.profile)
    assert callback.profiler.report() in out
    check(Profile.load(tmp_path / "torchprof.json"))


def test_numbers_go_to_the_loggers(ours: Any, package: str, tmp_path: Path) -> None:
    callback = ours.TorchprofCallback(every_secs=1e-9, report=False, save=False)
    loggers = importlib.import_module(f"{package}.loggers")
    logger = loggers.CSVLogger(str(tmp_path))
    options = {"callbacks": [callback], "logger": logger}
    Run(package, tmp_path).fit(limit_val_batches=0, **options)
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("torchprof/steps")]
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert float(row["torchprof/steps"]) == 1
        assert float(row["torchprof/time/forward_ms"]) == ACCUMULATED * FORWARD_MS
        assert float(row["torchprof/time/backward_ms"]) == ACCUMULATED * BACKWARD_MS


def test_an_exception_ends_it(ours: Any, package: str, tmp_path: Path) -> None:
    made = ours.TorchprofCallback()
    with pytest.raises(OSError, match="a broken disk"):
        Run(package, tmp_path).fit(bad=9, callbacks=[made])
    measured = made.profiler.profile
    assert measured.steps == 2
    Layer()(torch.ones(1, 3))
    assert made.profiler.profile.wall_ns == measured.wall_ns


def test_what_cannot_be_saved_ends_no_training(
    ours: Any, package: str, tmp_path: Path
) -> None:
    """Those after it still write what they have to."""
    (tmp_path / "torchprof.json").mkdir()
    written: list[str] = []
    base = importlib.import_module(f"{package}.callbacks").Callback

    class Writing(base):  # type: ignore[misc, valid-type]
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            written.append("the last checkpoint")

    callbacks = [ours.TorchprofCallback(report=False), Writing()]
    with pytest.warns(UserWarning, match=str(tmp_path)):
        Run(package, tmp_path).fit(callbacks=callbacks)
    assert written == ["the last checkpoint"]


def test_a_report_that_cannot_be_printed_ends_no_training(
    ours: Any, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = (tmp_path / "report.txt").open("w")
    file.close()
    monkeypatch.setattr(sys, "stdout", file)
    with pytest.warns(UserWarning, match="closed"):
        Run(package, tmp_path).fit(callbacks=[ours.TorchprofCallback()])


def test_nothing_is_saved_in_the_folder_of_a_remote_logger(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="s3://bucket/logs"):
        ours.TorchprofCallback()._finish("s3://bucket/logs", prints=False)
    assert list(tmp_path.iterdir()) == []


def test_it_goes_to_processes_that_a_trainer_spawns(
    ours: Any, package: str, tmp_path: Path
) -> None:
    made = ours.TorchprofCallback(profile())
    made._begin()
    Layer()(torch.ones(1, 3))
    copied = pickle.loads(pickle.dumps(made))
    made.close()
    copied.close()  # it has not begun
    assert type(copied) is type(made)
    assert copied.profiler.profile.is_empty
    Run(package, tmp_path).fit(callbacks=[copied])
    check(copied.profiler.profile)


@pytest.mark.thorough  # four processes that import Lightning take a minute
def test_each_rank_writes_its_profile(tmp_path: Path) -> None:
    """The same model, and one report."""
    pytest.importorskip("pytorch_lightning", reason="of the extra `test`")
    script = str(Path(__file__).parent / "scripts" / "fit_with_ranks.py")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    measured, bare = (
        python(*launcher, script, str(tmp_path), kind) for kind in ("measured", "bare")
    )
    assert (measured.returncode, bare.returncode) == (0, 0), measured.stderr
    found = [line for line in measured.stdout.splitlines() if line.startswith("[")]
    assert found == [line for line in bare.stdout.splitlines() if line.startswith("[")]
    assert len(found) == 1
    assert measured.stdout.count("torchprof_hooks: ") == 1
    ranks = load_ranks(tmp_path)
    assert [rank.number for rank in ranks.ranks] == [0, 1]
    assert [rank.steps for rank in ranks.ranks] == [4, 4]
