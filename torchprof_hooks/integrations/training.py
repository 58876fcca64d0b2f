"""What callbacks of trainers have in common: they measure training and, separately,
evaluation."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from typing import Final, TextIO

from torchprof_hooks.profiler import Profiler, profile
from torchprof_hooks.profiles.files.own_file import rank_path
from torchprof_hooks.profiles.options import check_file, check_flag, check_whole
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.session.trigger_timer import SecondOrStepTimer

#: Share of the time that measuring may take, unless a profiler is given.
BUDGET: Final = 0.02
#: Put before the names of our numbers in the logs of a trainer.
PREFIX: Final = "torchprof/"


def _seconds() -> float:
    return perf_counter_ns() / 1e9


def _warn(what: str) -> None:
    warnings.warn(f"torchprof_hooks: {what}", stacklevel=4)


class Training:
    """Measures what a trainer does, in the thread that it trains in.

    profiler, evaluator: two profilers, of training and of evaluation in between; by
        default with a budget of 2 %.
    every_secs: the least number of seconds between two times that numbers are made.
    top: of how many modules there are numbers.
    report: whether the report is printed at the end.
    file: where to print it; standard output by default.
    """

    def __init__(
        self,
        profiler: Profiler | None = None,
        evaluator: Profiler | None = None,
        *,
        every_secs: float = 10.0,
        top: int = 0,
        report: bool = True,
        file: TextIO | None = None,
    ) -> None:
        for name, given in (("profiler", profiler), ("evaluator", evaluator)):
            if given is not None and not isinstance(given, Profiler):
                raise TypeError(
                    f"{name} must be a Profiler, as profile() makes it, not {given!r}"
                )
        if profiler is not None and profiler is evaluator:
            raise ValueError("evaluator must not be the same Profiler as profiler")
        check_flag("report", report)
        check_file("file", file)
        self._training = profiler or profile(max_overhead=BUDGET)
        self._evaluation = evaluator or profile(max_overhead=BUDGET)
        self._timer = SecondOrStepTimer(every_secs=every_secs, clock=_seconds)
        self._top = check_whole("top", top, 0)
        self._report = report
        self._file = file
        self._active: Profiler | None = None  # the profiler that measures now
        self._last = Profile()  # the profile when numbers were last made

    def __getstate__(self) -> dict[str, object]:
        """For copies, which may be in processes that a trainer spawns: neither they nor
        their copies of the profilers are measuring."""
        return {**vars(self), "_active": None, "_last": Profile()}

    @property
    def profile(self) -> Profile:
        """The profile of training, so far."""
        return self._training.profile

    @property
    def evaluation_profile(self) -> Profile:
        """The profile of evaluation, so far."""
        return self._evaluation.profile

    @property
    def is_in_evaluation(self) -> bool:
        """Whether evaluation is measured now."""
        return self._active is self._evaluation

    def begin(self) -> None:
        """Training begins, or goes on."""
        self.end()
        self._switch_to(self._training)

    def begin_evaluation(self) -> None:
        """Evaluation begins. Does nothing if training has not begun."""
        if self._active is not None:
            self._switch_to(self._evaluation)

    def end_evaluation(self) -> None:
        """Training goes on."""
        if self.is_in_evaluation:
            self._switch_to(self._training)

    def end(self) -> None:
        """Stop measuring."""
        active, self._active = self._active, None
        if active is not None:
            with suppress(RuntimeError):  # it was begun in a thread that has ended
                active.stop()

    def _switch_to(self, profiler: Profiler) -> None:
        if self._active is not profiler:
            self.end()
            profiler.start()
            self._active = profiler

    def numbers_if_due(self, step: int) -> dict[str, float]:
        """`Profile.scalars` of the steps since the last numbers, with a prefix; {} if
        no step has ended, or the last numbers are not older than `every_secs`."""
        if self._active is None or not self._timer.should_trigger_for_step(step):
            return {}
        now, last = self.profile, self._last
        if now.steps == last.steps:
            return {}
        self._timer.update_last_triggered_step(step)
        self._last = now
        found = now.scalars(self._top, since=last)
        return {f"{PREFIX}{name}": value for name, value in found.items()}

    def tell(self) -> None:
        """Print the report, if that is wanted. If that fails, only warn: the trainer
        has not ended, and may have a checkpoint to write."""
        if self._report:
            try:
                print(self.report(), file=self._file or sys.stdout)
            except (OSError, ValueError) as error:  # the file is closed, say
                _warn(f"the report is not printed: {error}")

    def report(self) -> str:
        """The report of training, and below it that of evaluation, if there was any."""
        parts = [f"Training\n{self._training.report()}"]
        if not self.evaluation_profile.is_empty:
            parts.append(f"Evaluation\n{self._evaluation.report()}")
        return "\n\n".join(parts)

    def save(self, folder: str | Path) -> None:
        """Write the profile of training into a folder, with the rank in its name. If
        that fails, only warn, as `tell` does."""
        found = self.profile
        if "://" in str(folder):  # a URL; as a path, a local folder of that name
            if not found.provenance[0].rank:
                _warn(
                    f"the profile is not saved in {folder}, only in local folders: "
                    'give a local path, as profiler=profile(save="torchprof.json")'
                )
            return
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            found.save(rank_path(Path(folder) / "torchprof.json", found.provenance[0]))
        except (OSError, ValueError) as error:
            _warn(f"the profile is not saved in {folder}: {error}")


class TrainingCallback:
    """What callbacks of all trainers have in common. Parameters: see `Training`."""

    def __init__(
        self,
        profiler: Profiler | None = None,
        *,
        evaluator: Profiler | None = None,
        every_secs: float = 10.0,
        top: int = 0,
        report: bool = True,
        file: TextIO | None = None,
    ) -> None:
        super().__init__()
        self._training = Training(
            profiler,
            evaluator,
            every_secs=every_secs,
            top=top,
            report=report,
            file=file,
        )

    @property
    def profile(self) -> Profile:
        """The profile of training, so far."""
        return self._training.profile

    @property
    def evaluation_profile(self) -> Profile:
        """The profile of evaluation (Lightning: validation) within training, so far."""
        return self._training.evaluation_profile
