"""A callback and a profiler for the Trainer of Lightning, by either of its package
names: ``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from torchprof_hooks.integrations.actions import Actions
from torchprof_hooks.integrations.training import Training, TrainingCallback
from torchprof_hooks.profiler import Profiler
from torchprof_hooks.profiles.options import check_flag
from torchprof_hooks.profiles.profile import Profile

_PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")


def _bases(name: str, needed: tuple[str, ...]) -> tuple[type, ...]:
    """The classes of this name in the packages that the program has imported, or in the
    first that it could.

    Raises:
        ImportError: neither package is installed, or a class lacks a needed method.
    """
    used = [package for package in _PACKAGES if package in sys.modules]
    there = used or [each for each in _PACKAGES if find_spec(each.partition(".")[0])]
    if not there:
        raise ImportError("neither lightning nor pytorch_lightning is installed")
    found = []
    for package in there if used else there[:1]:
        module = import_module(package)
        folder = "callbacks" if name == "Callback" else "profilers"
        base = getattr(import_module(f"{package}.{folder}"), name)
        missing = [each for each in needed if not hasattr(base, each)]
        if missing:
            raise ImportError(
                f"torchprof_hooks does not know {package} {module.__version__}: its "
                f"{name} has no {', '.join(missing)}. `with profile():` around "
                "trainer.fit() measures all the same."
            )
        found.append(base)
    return tuple(found)


class _Callback(TrainingCallback):
    """Measures `Trainer.fit`, validation apart, and prints the report at its end.

    Numbers of `Profile.scalars` go to the trainer's loggers, with "torchprof/" before
    their names: those of the steps since the last ones. Each rank writes its profile
    into the folder of the logger, ``torchprof.json`` or ``torchprof-rank1.json``; if
    that is not a local one, or cannot be written to, there is a warning instead.

    Args:
        profiler: what measures training, made by `profile`; by default
            ``profile(max_overhead="2%")``.
        evaluator: what measures validation in between; the same by default.
        every_secs: numbers are logged at most so often: making them takes some
            milliseconds.
        top: how many modules these have.
        report: whether the report is printed at the end, by the first process.
        save: whether the profile is written.
        file: where the report is printed; standard output by default.

    Raises:
        TypeError, ValueError: a parameter is not what it may be.

    Example:
        >>> trainer = Trainer(callbacks=[TorchprofCallback()])
        >>> trainer.fit(model, loader)
        Training
        torchprof_hooks: Net, 95.22sec wall ...
    """

    def __init__(
        self,
        profiler: Profiler | None = None,
        *,
        top: int = 3,
        save: bool = True,
        **others: Any,
    ) -> None:
        super().__init__(profiler, top=top, **others)
        check_flag("save", save)
        self._save = save

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._training.begin()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._training.begin_evaluation()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._training.end_evaluation()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if trainer.loggers:
            numbers = self._training.numbers_if_due(trainer.global_step)
            for logger in trainer.loggers if numbers else ():
                logger.log_metrics(numbers, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: Any) -> None:
        self._training.end()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._training.end()
        folder = trainer.log_dir  # all ranks have to ask for it
        if self._save and folder:
            self._training.save(folder)
        if trainer.is_global_zero:
            self._training.tell()


class _Profiler:
    """Measures all that a Trainer does, from its setup on, for
    ``Trainer(profiler=TorchprofProfiler())``; validation within `fit` apart.

    Its summary is the report, with a table of Lightning's actions below it. It is
    written where those of Lightning's profilers are: to the log, or into a file of
    `dirpath` with `filename`. Each rank writes its profile into `dirpath`, by default
    the folder of the logger: ``torchprof.json`` or ``torchprof-rank1.json``.

    Args:
        dirpath, filename: of the report (see Lightning's Profiler).
        profiler: what measures training, made by `profile`; by default
            ``profile(max_overhead="2%")``.
        evaluator: what measures validation in between; the same by default.
        save: whether the profile is written.

    Raises:
        TypeError, ValueError: a parameter is not what it may be.

    Example:
        >>> trainer = Trainer(profiler=TorchprofProfiler(filename="report"))
        >>> trainer.fit(model, loader)
    """

    if TYPE_CHECKING:
        dirpath: str | Path | None

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str | None = None,
        *,
        profiler: Profiler | None = None,
        evaluator: Profiler | None = None,
        save: bool = True,
    ) -> None:
        cast("Any", super()).__init__(dirpath=dirpath, filename=filename)
        self._training = Training(profiler, evaluator)
        self._actions = Actions()
        check_flag("save", save)
        self._save = save

    @property
    def profile_of_training(self) -> Profile:
        """So far; by this name, as `profile` is a method of Lightning's."""
        return self._training.profile

    @property
    def profile_of_evaluation(self) -> Profile:
        """Of validation within training, so far."""
        return self._training.evaluation_profile

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Begin to measure."""
        cast("Any", super()).setup(*args, **kwargs)
        self._training.begin()

    def start(self, action_name: str) -> None:
        """An action begins. The first of evaluation are those that say so."""
        if action_name.endswith(".on_validation_start"):
            self._training.begin_evaluation()
        self._actions.begin(action_name)

    def stop(self, action_name: str) -> None:
        """An action ends. The module is the last to be told that validation does."""
        self._actions.end(action_name)
        is_of_module = action_name.startswith("[LightningModule]")
        if is_of_module and action_name.endswith(".on_validation_end"):
            self._training.end_evaluation()

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """A block. Nobody else tells of an exception."""
        self.start(action_name)
        try:
            yield action_name
        except BaseException:
            if self._actions.is_outermost(action_name):
                self._training.end()
            raise
        finally:
            self.stop(action_name)

    def summary(self) -> str:
        """The report. Nothing is measured any more."""
        self._training.end()
        if self._save and self.dirpath is not None:
            self._training.save(self.dirpath)
        return f"{self._training.report()}\n\n{self._actions.table()}"

    def teardown(self, stage: str | None) -> None:
        """Measure no more. ``__del__`` calls it, too, whatever was made before."""
        if hasattr(self, "_training"):
            self._training.end()
        cast("Any", super()).teardown(stage)


def _of_lightning(ours: type, name: str, needed: tuple[str, ...]) -> Any:
    """Our class as one of Lightning's, by the name that users know. What it derives
    from is known when it is imported, so that type checkers know nothing of it."""
    base = name.removeprefix("Torchprof")
    members = {"__doc__": ours.__doc__, "__module__": __name__}
    return type(name, (ours, *_bases(base, needed)), members)


TorchprofCallback: Any = _of_lightning(
    _Callback,
    "TorchprofCallback",
    tuple(name for name in vars(_Callback) if name.startswith("on_")),
)
TorchprofProfiler: Any = _of_lightning(
    _Profiler,
    "TorchprofProfiler",
    ("setup", "start", "stop", "profile", "summary", "teardown", "describe"),
)
