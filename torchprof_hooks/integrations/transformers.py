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
    """Measures `Trainer.train`, evaluation separately, and prints the report at its
    end.

    Numbers of `Profile.scalars`, each time for the steps since the last time, go into
    the logs, with "torchprof/" before their names. A trainer calls the callbacks that
    report logs (to TensorBoard, W&B) before those of the user; `attach_to` puts this
    one before them.

    Args:
        profiler: the profiler for training, made by `profile`; by default
            ``profile(max_overhead="2%")``.
        evaluator: a second profiler, for evaluation in between; with the same default.
        every_secs: the least number of seconds between two logs: to make the numbers
            takes some milliseconds.
        top: of how many modules there are numbers.
        report: whether the report is printed at the end, by rank 0.
        file: where to print it; standard output by default.

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

    _data_sets = 1  # of an evaluation; `on_evaluate` is called after each
    _evaluated = 0  # how many of these are done

    def attach_to(self, trainer: Any) -> None:
        """Put this callback into a trainer: before those that report its logs, but
        after the one that says when to evaluate, which is always the first. If the
        trainer is to evaluate several data sets, it must have them by now."""
        data = trainer.eval_dataset
        self._data_sets = len(data) if isinstance(data, dict) else 1
        callbacks = trainer.callback_handler.callbacks
        if self in callbacks:
            callbacks.remove(self)
        callbacks.insert(1, self)

    def close(self) -> None:
        """Stop measuring: for programs that go on after `train` has raised, since a
        trainer does not tell callbacks of that."""
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
        """If nothing has announced evaluation, this comes after its first batch."""
        self._training.begin_evaluation()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called after each data set. After the last one, training goes on."""
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
        if not logs or "loss" not in logs:  # logs of evaluation, and at the end
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
