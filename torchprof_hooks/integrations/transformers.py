"""A callback for the Trainer of transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from torchprof_hooks.integrations.training import Training


class TorchprofCallback(Training, TrainerCallback):
    """Measures `Trainer.train`, and writes the profile into ``output_dir``. Parameters:
    see `Training`.

    Example:
        >>> callback = TorchprofCallback()
        >>> callback.attach_to(trainer)
        >>> trainer.train()
    """

    def attach_to(self, trainer: Any) -> None:
        """Add this callback to a trainer, before callbacks that report its logs (to
        TensorBoard, W&B)."""
        callbacks = trainer.callback_handler.callbacks
        if self in callbacks:
            callbacks.remove(self)
        callbacks.insert(0, self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._begin()

    def on_log(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        if "loss" in (of.get("logs") or ()):  # not logs of evaluation, nor of the end
            numbers = self._numbers()
            for logs in (of["logs"], *state.log_history[-1:]):
                logs.update(numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._finish(args.output_dir, prints=state.is_world_process_zero)
