"""A callback for the Trainer of transformers."""

from __future__ import annotations

from typing import Any, Final

import transformers
from transformers import TrainerCallback

from torchprof_hooks.integrations.training import TrainingCallback

#: What the callback listens to.
_EVENTS: Final = (
    "on_train_begin",
    "on_step_begin",
    "on_step_end",
    "on_epoch_end",
    "on_prediction_step",
    "on_evaluate",
    "on_predict",
    "on_log",
    "on_train_end",
)
_MISSING: Final = [name for name in _EVENTS if not hasattr(TrainerCallback, name)]
if _MISSING:
    raise ImportError(
        f"torchprof_hooks does not know transformers {transformers.__version__}: its "
        f"TrainerCallback has no {', '.join(_MISSING)}. `with profile():` around "
        "trainer.train() measures all the same."
    )


class TorchprofCallback(TrainingCallback, TrainerCallback):
    """Measures `Trainer.train`, evaluation apart, and prints the report at its end.

    Numbers of `Profile.scalars` go into the logs, with "torchprof/" before their names:
    those of the steps since the last ones. The callbacks that report logs (to
    TensorBoard, W&B) come before those of the user; `attach_to` puts this one before
    them.

    Args:
        profiler: what measures training, made by `profile`; by default
            ``profile(max_overhead="2%")``.
        evaluator: what measures evaluation in between; the same by default.
        every_secs: numbers are logged at most so often: making them takes some
            milliseconds.
        top: how many modules these have.
        report: whether the report is printed at the end, by the first process.
        file: where to; standard output by default.

    Raises:
        TypeError, ValueError: a parameter is not what it may be.

    Example:
        >>> callback = TorchprofCallback()
        >>> callback.attach_to(trainer)
        >>> trainer.train()
        Training
        torchprof_hooks: LlamaForCausalLM, 95.22sec wall ...
        >>> callback.profile.save("profile.json")
    """

    _data_sets = 1  # of an evaluation, which tells of the end of each
    _evaluated = 0  # so many of them

    def attach_to(self, trainer: Any) -> None:
        """Be called by a trainer before those callbacks that report its logs, and after
        the one that says when to evaluate, which is always the first. If it evaluates
        several data sets, it must have them by now."""
        data = trainer.eval_dataset
        self._data_sets = len(data) if isinstance(data, dict) else 1
        callbacks = trainer.callback_handler.callbacks
        if self in callbacks:
            callbacks.remove(self)
        callbacks.insert(1, self)

    def close(self) -> None:
        """Measure no more: for programs that go on after `train` has raised, of which
        callbacks are not told."""
        self._training.end()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.begin()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._end_evaluation()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if control.should_evaluate:
            self._training.begin_evaluation()

    on_epoch_end = on_step_end

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """If nobody had said that evaluation comes, it has its first batch behind."""
        self._training.begin_evaluation()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After each data set: behind the last one, batches for training are loaded."""
        self._evaluated += 1
        if self._evaluated >= self._data_sets:
            self._end_evaluation()

    def on_predict(
        self, args: Any, state: Any, control: Any, metrics: Any, **_: Any
    ) -> None:
        self._end_evaluation()

    def _end_evaluation(self) -> None:
        self._evaluated = 0
        self._training.end_evaluation()

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if not logs or "loss" not in logs:  # of evaluation, and of the end
            return
        numbers = self._training.numbers_if_due(state.global_step)
        if numbers:
            logs.update(numbers)
            if state.log_history:
                state.log_history[-1].update(numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.end()
        if state.is_world_process_zero:
            self._training.tell()
