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
    """Measures `Trainer.fit`, validation separately, and prints the report at its end.

    Numbers of `Profile.scalars`, each time for the steps since the last time, go to the
    trainer's loggers, with "torchprof/" before their names. Each rank writes its
    profile into the folder of the logger, ``torchprof.json`` or
    ``torchprof-rank1.json``; if that folder is not local, or cannot be written to,
    there is a warning instead.

    Args:
        profiler: the profiler for training, made by `profile`; by default
            ``profile(max_overhead="2%")``.
        evaluator: a second profiler, for validation in between; with the same default.
        every_secs: the least number of seconds between two logs: to make the numbers
            takes some milliseconds.
        top: of how many modules there are numbers.
        report: whether the report is printed at the end, by rank 0.
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
    """Measures all that a Trainer does, from its setup on, validation within `fit`
    separately: ``Trainer(profiler=TorchprofProfiler())``.

    The summary is the report, with a table of Lightning's actions below. It goes where
    Lightning's profilers write theirs: to the log, or into a file in `dirpath` named by
    `filename`. Each rank writes its profile into `dirpath`, by default the folder of
    the logger: ``torchprof.json`` or ``torchprof-rank1.json``.

    Args:
        dirpath, filename: of the report (see Lightning's Profiler).
        profiler: the profiler for training, made by `profile`; by default
            ``profile(max_overhead="2%")``.
        evaluator: a second profiler, for validation in between; with the same default.
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
        """The profile of training, so far; `profile` is a method of Lightning's."""
        return self._training.profile

    @property
    def profile_of_evaluation(self) -> Profile:
        """The profile of validation within training, so far."""
        return self._training.evaluation_profile

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Begin to measure."""
        cast("Any", super()).setup(*args, **kwargs)
        self._training.begin()

    def start(self, action_name: str) -> None:
        """An action begins; evaluation with the first ``on_validation_start``."""
        if action_name.endswith(".on_validation_start"):
            self._training.begin_evaluation()
        self._actions.begin(action_name)

    def stop(self, action_name: str) -> None:
        """An action ends. The last ``on_validation_end`` is that of the module."""
        self._actions.end(action_name)
        is_of_module = action_name.startswith("[LightningModule]")
        if is_of_module and action_name.endswith(".on_validation_end"):
            self._training.end_evaluation()

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """Measure a block as an action. Nothing else tells us of an exception."""
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
        """The report. Making it ends the measurement."""
        self._training.end()
        if self._save and self.dirpath is not None:
            self._training.save(self.dirpath)
        return f"{self._training.report()}\n\n{self._actions.table()}"

    def teardown(self, stage: str | None) -> None:
        """Stop measuring. ``__del__`` calls this, too, even if ``__init__`` failed."""
        if hasattr(self, "_training"):
            self._training.end()
        cast("Any", super()).teardown(stage)


def _of_lightning(ours: type, name: str, needed: tuple[str, ...]) -> Any:
    """A class derived from ours and Lightning's, with the public name. Its bases depend
    on what is installed, so type checkers know nothing of it."""
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
