"""A callback for the Trainer of transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from torchprof_hooks.integrations.training import Training


class TorchprofCallback(Training, TrainerCallback):
    """Measures `Trainer.train`, with evaluation separately. It writes the profile into
    ``output_dir``. Parameters: see `Training`.

    Example:
        >>> callback = TorchprofCallback()
        >>> callback.attach_to(trainer)
        >>> trainer.train()
    """

    _data_sets = 1  # in an evaluation; `on_evaluate` is called after each
    _evaluated = 0  # how many of these this evaluation has done

    def attach_to(self, trainer: Any) -> None:
        """Add this callback to a trainer: before callbacks that report its logs (to
        TensorBoard, W&B), and after the first one, which decides when to evaluate. If
        there are several data sets for evaluation, the trainer must have them by now.
        """
        data = trainer.eval_dataset
        self._data_sets = len(data) if isinstance(data, dict) else 1
        callbacks = trainer.callback_handler.callbacks
        if self in callbacks:
            callbacks.remove(self)
        callbacks.insert(1, self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._begin(self.training)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._evaluated = 0
        self._go_on_with(self.training)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if control.should_evaluate:
            self._go_on_with(self.evaluation)

    on_epoch_end = on_step_end

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure evaluation from now on, after its first batch, if `on_step_end` did
        not know that it would come."""
        self._go_on_with(self.evaluation)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After the last data set, measure training again: it loads the next batch."""
        self._evaluated += 1
        if self._evaluated >= self._data_sets:
            self.on_step_begin(args, state, control)

    def on_log(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        if "loss" in (of.get("logs") or ()):  # not logs of evaluation, nor of the end
            numbers = self._numbers()
            for logs in (of["logs"], *state.log_history[-1:]):
                logs.update(numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._finish(args.output_dir, prints=state.is_world_process_zero)
