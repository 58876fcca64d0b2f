"""The base class of callbacks and profilers for trainers, which measures training and,
separately, evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from torchprof_hooks.files.own_file import rank_path
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiler import Profiler, profile
from torchprof_hooks.profiles.options import check_flag, check_positive, check_whole


class Training:
    """Base class of callbacks and profilers for trainers; measures the thread that
    trains.

    Args:
        profiler: the profiler for training; by default ``profile()``.
        evaluator: another profiler, for evaluation within training; by default
            ``profile()``, too.
        every_secs: the least seconds between two logs of numbers (`Profile.scalars` of
            the steps since the last log): to make them takes milliseconds.
        top: how many modules the numbers include.
        report: whether rank 0 prints the report at the end.
        save: whether each rank writes the profile of training into the trainer's
            folder, as ``torchprof.json`` or ``torchprof-rank1.json``.

    Raises:
        TypeError, ValueError: a parameter is not valid.
    """

    _active: Profiler | None = None  # the profiler that measures now

    def __init__(
        self,
        profiler: Profiler | None = None,
        *,
        evaluator: Profiler | None = None,
        every_secs: float = 10.0,
        top: int = 3,
        report: bool = True,
        save: bool = True,
        **others: Any,
    ) -> None:
        super().__init__(**others)  # of the trainer's own base class
        given: dict[str, object] = {"profiler": profiler, "evaluator": evaluator}
        for name, value in given.items():
            if not isinstance(value, Profiler | None):
                raise TypeError(f"{name} must be a Profiler or None, not {value!r}")
        if profiler is not None and profiler is evaluator:
            raise ValueError("evaluator must not be the same Profiler as profiler")
        check_positive("every_secs", every_secs)
        check_flag("report", report)
        check_flag("save", save)
        self.training = profiler or profile()
        self.evaluation = evaluator or profile()
        self._every_ns, self._due_ns = every_secs * 1e9, 0.0
        self._top = check_whole("top", top, 0)
        self._reports, self._saves = report, save
        self._logged = Profile()  # the profile when numbers were last made

    def __getstate__(self) -> dict[str, object]:
        """The state for processes that a trainer spawns, where nothing measures yet."""
        return {**vars(self), "_active": None, "_due_ns": 0.0, "_logged": Profile()}

    def reports(self) -> str:
        """The report of training, and below it that of evaluation, if there was any."""
        parts = [f"Training\n{self.training.report()}"]
        if not self.evaluation.profile.is_empty:
            parts.append(f"Evaluation\n{self.evaluation.report()}")
        return "\n\n".join(parts)

    def close(self) -> None:
        """Stop measuring. Call it after an exception: not all trainers do."""
        active, self._active = self._active, None
        if active is not None:
            with suppress(RuntimeError):  # it was started in another thread
                active.stop()

    def _begin(self, profiler: Profiler) -> None:
        self.close()
        profiler.start()
        self._active = profiler

    def _go_on_with(self, profiler: Profiler) -> None:
        """Measure with `profiler` from now on, as evaluation begins or ends. Outside of
        training, this does nothing."""
        if self._active not in (None, profiler):
            self._begin(profiler)

    def _numbers(self) -> dict[str, float]:
        """The numbers to log; {} if none are due, or no step has ended since."""
        now_ns, last = perf_counter_ns(), self._logged
        if self._active is None or now_ns < self._due_ns:
            return {}
        now = self.training.profile
        if now.steps == last.steps:
            return {}
        self._due_ns, self._logged = now_ns + self._every_ns, now
        found = now.scalars(self._top, since=last)
        return {f"torchprof/{name}": value for name, value in found.items()}

    def _finish(self, folder: str | Path | None, *, prints: bool) -> None:
        """Stop measuring at the end of training, save and report. Failures only warn:
        the trainer has not ended, and may have a checkpoint to write."""
        self.close()
        if self._saves and folder:
            with _warning(f"the profile is not saved in {folder}"):
                if "://" in str(folder):  # Path would make it a local folder
                    raise ValueError("it is not local; profile(save=) takes a path")
                found = self.training.profile
                Path(folder).mkdir(parents=True, exist_ok=True)
                path = Path(folder, "torchprof.json")
                found.save(rank_path(path, found.provenance[0]))
        if self._reports and prints:
            with _warning("the report is not printed"):
                print(self.reports())


@contextmanager
def _warning(trouble: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        warnings.warn(f"torchprof_hooks: {trouble}: {error}", stacklevel=4)
