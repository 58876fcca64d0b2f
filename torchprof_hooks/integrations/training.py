"""The base class of callbacks for trainers, which measures training."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter_ns

from torchprof_hooks.files.own_file import rank_path
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiler import Profiler, profile
from torchprof_hooks.profiles.options import check_flag, check_positive, check_whole


class Training:
    """Base class of callbacks for trainers; measures the thread that trains, with
    evaluation within training: its calls are told apart from steps.

    Args:
        profiler: what measures; by default ``profile()``.
        every_secs: the least seconds between two logs of numbers (`Profile.scalars` of
            the steps since the last log): to make them takes milliseconds.
        top: how many modules the numbers include.
        report: whether rank 0 prints the report at the end.
        save: whether each rank writes the profile into the trainer's folder, as
            ``torchprof.json`` or ``torchprof-rank1.json``.

    Raises:
        TypeError, ValueError: a parameter is not valid.
    """

    _is_measuring = False

    def __init__(
        self,
        profiler: Profiler | None = None,
        *,
        every_secs: float = 10.0,
        top: int = 3,
        report: bool = True,
        save: bool = True,
    ) -> None:
        super().__init__()  # the trainer's own base class
        if not isinstance(profiler, Profiler | None):
            raise TypeError(f"profiler must be a Profiler or None, not {profiler!r}")
        check_positive("every_secs", every_secs)
        check_flag("report", report)
        check_flag("save", save)
        self.profiler = profiler or profile()
        self._every_ns, self._due_ns = every_secs * 1e9, 0.0
        self._top = check_whole("top", top, 0)
        self._reports, self._saves = report, save
        self._logged = Profile()  # the profile when numbers were last made

    def __getstate__(self) -> dict[str, object]:
        """The state for processes that a trainer spawns, where nothing measures yet."""
        began = {"_is_measuring": False, "_due_ns": 0.0, "_logged": Profile()}
        return {**vars(self), **began}

    def close(self) -> None:
        """Stop measuring. Call it after an exception: not all trainers do."""
        was_measuring, self._is_measuring = self._is_measuring, False
        if was_measuring:
            with suppress(RuntimeError):  # it was started in another thread
                self.profiler.stop()

    def _begin(self) -> None:
        self.close()
        self.profiler.start()
        self._is_measuring = True

    def _numbers(self) -> dict[str, float]:
        """The numbers to log; {} if none are due, or no step was measured since."""
        now_ns, last = perf_counter_ns(), self._logged
        if not self._is_measuring or now_ns < self._due_ns:
            return {}
        now = self.profiler.profile
        if now.measured_steps == last.measured_steps:
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
                found = self.profiler.profile
                Path(folder).mkdir(parents=True, exist_ok=True)
                path = Path(folder, "torchprof.json")
                found.save(rank_path(path, found.provenance[0]))
        if self._reports and prints:
            with _warning("the report is not printed"):
                self.profiler.print_report()


@contextmanager
def _warning(trouble: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        warnings.warn(f"torchprof_hooks: {trouble}: {error}", stacklevel=4)
