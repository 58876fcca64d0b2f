"""A callback for the Trainer of Lightning, by either of its package names:
``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from torchprof_hooks.integrations.training import Training


def _callbacks() -> list[Any]:
    """The base classes of callbacks, of the packages that the program has imported; or
    if none, of the first one that can be imported."""
    names = ("lightning.pytorch", "pytorch_lightning")
    found = [sys.modules[name] for name in names if name in sys.modules]
    with suppress(ImportError):
        found = found or [import_module(names[0])]
    found = found or [import_module(names[1])]
    return [package.callbacks.Callback for package in found]


_CALLBACKS: Any = _callbacks()


class TorchprofCallback(Training, *_CALLBACKS):  # type: ignore[misc]
    """Measures `Trainer.fit`. It gives numbers to the loggers, and writes the profile
    into ``log_dir``. Parameters: see `Training`.

    Example:
        >>> Trainer(callbacks=[TorchprofCallback()]).fit(model, loader)
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        numbers = self._numbers() if trainer.loggers else {}
        for logger in trainer.loggers if numbers else ():
            logger.log_metrics(numbers, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: Any) -> None:
        self.close()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        # All ranks must read `log_dir`, which broadcasts the folder of rank 0.
        self._finish(trainer.log_dir, prints=trainer.is_global_zero)
