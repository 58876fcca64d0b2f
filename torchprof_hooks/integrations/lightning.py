"""A callback and a profiler for the Trainer of Lightning, by either of its package
names: ``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from torchprof_hooks.integrations.training import Training


def _packages() -> list[Any]:
    """The packages that the program has imported; or if none, the first one that can be
    imported."""
    names = ("lightning.pytorch", "pytorch_lightning")
    found = [sys.modules[name] for name in names if name in sys.modules]
    with suppress(ImportError):
        return found or [import_module(names[0])]
    return [import_module(names[1])]


_CALLBACKS: Any = [package.callbacks.Callback for package in _packages()]
_PROFILERS: Any = [package.profilers.Profiler for package in _packages()]


class TorchprofCallback(Training, *_CALLBACKS):  # type: ignore[misc]
    """Measures `Trainer.fit`, with validation separately. It gives numbers to the
    loggers, and writes the profile into ``log_dir``. Parameters: see `Training`.

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
        # All ranks must read `log_dir`, which broadcasts the folder of rank 0.
        self._finish(trainer.log_dir, prints=trainer.is_global_zero)


class TorchprofProfiler(Training, *_PROFILERS):  # type: ignore[misc]
    """Measures all that a Trainer does, with validation within `fit` separately. The
    report goes where Lightning's profilers write theirs: to the log, or into a file in
    `dirpath` named by `filename`. The profile goes into `dirpath`, by default the
    folder of the logger. Other parameters: `profiler`, `evaluator`, `save`, as for
    `Training`. After an exception in `fit`, call `close`: a Trainer does not report
    exceptions to profilers.

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
        """The report. This ends measuring."""
        self._finish(self.dirpath, prints=False)
        return self.reports()

    def teardown(self, stage: str | None) -> None:
        self.close()
        super().teardown(stage)
