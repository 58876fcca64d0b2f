"""The callback for the Trainer of transformers, with the real Trainer."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests import planted
from tests.fake_clock import MS, burn
from tests.integrations import burning
from tests.integrations.burning import (
    BACKWARD_MS,
    BATCH,
    FORWARD_MS,
    LOADING_MS,
    Layer,
    totals,
)
from torchprof_hooks import Profile, profile

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clock")]


#: Batches in two evaluations.
EVALUATED = 6


class Net(Layer):
    """Gives the loss, as models of transformers do."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:  # type: ignore[override]
        out = super().forward(x)
        return {"loss": F.mse_loss(out, labels), "logits": out}


class Points(burning.Points):
    def __getitem__(self, index: int) -> Any:
        x = super().__getitem__(index)
        return {"x": x, "labels": x}


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also what is imported by the first training: some of that adds to the filters for
    warnings, of which tests leave none behind."""
    pytest.importorskip("transformers", reason="of the extra `test`")
    pytest.importorskip("accelerate", reason="of the extra `test`")
    with pytest.MonkeyPatch.context() as patch:
        for module in (burning, planted):
            patch.setattr(module, "burn", int)
        make_trainer(tmp_path_factory.mktemp("first")).train()


def ours() -> Any:
    return import_module("torchprof_hooks.integrations.transformers")


def make_callback(**options: Any) -> Any:
    return ours().TorchprofCallback(profile(), **{"every_secs": 1e-9, **options})


def make_trainer(folder: Path, callback: Any = None, **options: Any) -> Any:
    """Four steps of two batches each, with evaluation every other step."""
    transformers = import_module("transformers")
    bad = options.pop("bad", None)
    settings = {
        "max_steps": 4,
        "gradient_accumulation_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        **options,
    }
    trainer = transformers.Trainer(
        Net(),
        transformers.TrainingArguments(
            str(folder),
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            **settings,
        ),
        train_dataset=Points(16, bad),
        eval_dataset=Points(6),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    if callback is not None:
        callback.attach_to(trainer)
    return trainer


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_training_is_measured_with_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evaluation is told apart from steps."""
    callback = make_callback()
    trainer = make_trainer(tmp_path, callback)
    trainer.train()
    bare = make_trainer(tmp_path)
    bare.train()
    assert losses(trainer) == losses(bare)
    assert len(losses(trainer)) == 4

    found = callback.profiler.profile
    assert found.steps == 4
    assert found.step_times.evaluations == EVALUATED
    assert found.step_times.evaluation_mean_ns == FORWARD_MS * MS
    assert totals(found, "Net", "forward") == (8 + EVALUATED, 14 * FORWARD_MS)
    assert totals(found, "Net", "backward") == (8, 8 * BACKWARD_MS)
    assert found.phase_times_ns()["data"] == (8 + EVALUATED) * LOADING_MS * MS
    assert callback.profiler.report() in capsys.readouterr().out
    saved = Profile.load(tmp_path / "torchprof.json")
    assert totals(saved, "Net", "backward") == (8, 8 * BACKWARD_MS)


def test_logs_have_the_numbers_of_the_steps_since_the_last(tmp_path: Path) -> None:
    transformers = import_module("transformers")
    seen: list[dict[str, Any]] = []

    class Reporting(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_log(self, args: Any, state: Any, control: Any, **of: Any) -> None:
            seen.append(dict(of["logs"]))

    callback = make_callback(report=False, top=1)
    trainer = make_trainer(tmp_path, eval_strategy="no")
    trainer.add_callback(Reporting)
    callback.attach_to(trainer)
    trainer.train()
    logged = [each for each in seen if "torchprof/steps" in each]
    history = [e for e in trainer.state.log_history if "torchprof/steps" in e]
    # Of each step, and not in the logs of evaluation and of the end.
    for entries in (logged, history):
        assert [each["torchprof/steps"] for each in entries] == [1, 1, 1, 1]
        for each in entries:
            assert each["torchprof/time/forward_ms"] == 2 * FORWARD_MS
            assert each["torchprof/time/backward_ms"] == 2 * BACKWARD_MS
            assert each["torchprof/module/Net/forward_ms"] == 2 * FORWARD_MS


def test_numbers_are_made_at_most_so_often(tmp_path: Path) -> None:
    step_s = 2 * (FORWARD_MS + BACKWARD_MS + LOADING_MS) / 1e3
    callback = make_callback(report=False, every_secs=1.5 * step_s)
    trainer = make_trainer(tmp_path, callback, eval_strategy="no")
    trainer.train()
    found = [e for e in trainer.state.log_history if "torchprof/steps" in e]
    assert [each["torchprof/steps"] for each in found] == [1, 2]


def test_an_exception_ends_it_when_it_is_closed(tmp_path: Path) -> None:
    callback = make_callback()
    trainer = make_trainer(tmp_path, callback, bad=9)
    with pytest.raises(OSError, match="a broken disk"):
        trainer.train()
    callback.close()
    measured = callback.profiler.profile.wall_ns
    burn(1000)
    Net()(torch.ones(1, 3), torch.ones(1, 3))
    assert callback.profiler.profile.wall_ns == measured
    assert totals(callback.profiler.profile, "Net", "forward")[0] >= 2


def test_it_is_put_before_those_that_report(tmp_path: Path) -> None:
    callback = make_callback()
    trainer = make_trainer(tmp_path, callback)
    callback.attach_to(trainer)  # once more
    kinds = [type(each).__name__ for each in trainer.callback_handler.callbacks]
    assert kinds[0] == "TorchprofCallback"
    assert kinds.count("TorchprofCallback") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        *({"profiler": 3}, {"every_secs": 0}, {"top": -1}),
        *({"report": 1}, {"save": "out.json"}),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises((TypeError, ValueError), match=name):
        ours().TorchprofCallback(**wrong)
