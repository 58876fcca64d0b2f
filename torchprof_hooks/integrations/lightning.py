"""A callback and a profiler for the Trainer of Lightning, by either of its package
names: ``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from torchprof_hooks.integrations.training import Training


def _packages() -> list[Any]:
    """Those that the program has imported, or the first that it could."""
    names = ("lightning.pytorch", "pytorch_lightning")
    found = [sys.modules[name] for name in names if name in sys.modules]
    with suppress(ImportError):
        return found or [import_module(names[0])]
    return [import_module(names[1])]


_CALLBACKS: Any = [package.callbacks.Callback for package in _packages()]
_PROFILERS: Any = [package.profilers.Profiler for package in _packages()]


class TorchprofCallback(Training, *_CALLBACKS):  # type: ignore[misc]
    """Measures `Trainer.fit`, validation separately. Parameters: see `Training`;
    numbers go to the loggers, and the profile is written into ``log_dir``.

    Example:
        >>> Trainer(callbacks=[TorchprofCallback()]).fit(model, loader)
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin(self.training)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._go_on_with(self.evaluation)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._go_on_with(self.training)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        numbers = self._numbers() if trainer.loggers else {}
        for logger in trainer.loggers if numbers else ():
            logger.log_metrics(numbers, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: Any) -> None:
        self.close()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        # All ranks have to ask for the folder.
        self._finish(trainer.log_dir, prints=trainer.is_global_zero)


class TorchprofProfiler(Training, *_PROFILERS):  # type: ignore[misc]
    """Measures all that a Trainer does, validation within `fit` separately. The report
    goes where Lightning's profilers write theirs: to the log, or into a file in
    `dirpath` named by `filename`. The profile is written into `dirpath`, by default the
    folder of the logger. Other parameters: `profiler`, `evaluator`, `save`, as of
    `Training`. After an exception in `fit`, call `close`: a Trainer does not tell.

    Example:
        >>> Trainer(profiler=TorchprofProfiler(filename="report")).fit(model, loader)
    """

    def setup(self, *args: Any, **of: Any) -> None:
        super().setup(*args, **of)
        self._begin(self.training)

    def start(self, action_name: str) -> None:
        if action_name.endswith(".on_validation_start"):
            self._go_on_with(self.evaluation)

    def stop(self, action_name: str) -> None:
        if action_name.endswith(".on_validation_end"):
            self._go_on_with(self.training)

    def summary(self) -> str:
        """The report. Making it ends the measurement."""
        self._finish(self.dirpath, prints=False)
        return self.reports()

    def teardown(self, stage: str | None) -> None:
        self.close()
        super().teardown(stage)
