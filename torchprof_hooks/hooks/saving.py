"""Saves the profile of a profiler, while it measures and at the end."""

from __future__ import annotations

import atexit
import signal
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchprof_hooks.capture.torch_names.distributed import mesh_coordinates
from torchprof_hooks.measure.interrupted_exit import interrupted_exit
from torchprof_hooks.measure.origin import Origin
from torchprof_hooks.profiles.options import print_to

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import P, ProfileData
    from torchprof_hooks.profiles.provenance import Provenance


class Saving:
    """Adds the provenance to the profiles of one profiler and, if there is a path,
    saves them.

    flush_secs: seconds between two writes while the profiler measures.
    ranks_report: whether rank 0 prints the report of all ranks at its exit, and before
        that, a line when a rank becomes slow.
    """

    def __init__(
        self,
        path: Path | None = None,
        flush_secs: float = 0.0,
        ranks_report: bool = False,
    ) -> None:
        self._options = (path, flush_secs, ranks_report)
        self._path = path
        self._origin = Origin(flush_secs if path else 0.0, mesh_coordinates)
        self._ranks_report = ranks_report
        if path:
            from torchprof_hooks.documents.ranks_live import RanksWatch
            from torchprof_hooks.files.own_file import OwnFile

            look = RanksWatch(path).look if ranks_report else None
            self._file = OwnFile(path, self._origin.provenance, flush_secs, look)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, also in other processes, save what they measure themselves."""
        return type(self), self._options

    def signed(self, profile: P, *, has_ended: bool) -> P:
        """The same profile, with its provenance."""
        return replace(profile, provenance=(self._origin.provenance(has_ended),))

    def entered(self, profiler: Any) -> None:
        """Call this when the profiler has begun to measure: from now on, its `profile`
        is written. That does not keep it alive: if it is dropped before it has stopped,
        nothing more is written."""
        if self._path:
            find = weakref.ref(profiler)
            self._file.keep_writing(
                lambda: None if (living := find()) is None else living.profile
            )

    def left(self, make: Callable[[], ProfileData], by_exception: bool = False) -> None:
        """Call this when the profiler has stopped measuring: save what `make` returns.
        Warn if the file cannot be saved.

        by_exception: whether an exception of the user's is propagating. A warning that
            the user's filters turn into an error must not replace it.
        """
        if self._path is None:
            return
        try:
            self._file.finish(make())
        except Exception as error:  # the program goes on
            with suppress(Warning) if by_exception else nullcontext():
                warnings.warn(f"{self._file.path} is not saved: {error}", stacklevel=5)
            return
        provenance = self._origin.provenance(True)
        if self._ranks_report and provenance.world_size > 1 and not provenance.rank:
            self._ranks_report = False  # once
            atexit.register(_tell_of_ranks, self._path, provenance)
            interrupted_exit.registered()


def _tell_of_ranks(path: Path, provenance: Provenance) -> None:
    # The program has ended: no error here matters.
    with interrupted_exit.uninterrupted() as delay, suppress(Exception):
        from torchprof_hooks.documents.ranks_at_exit import final_report

        found = final_report(
            path, provenance, is_hurried=lambda: delay.has_delayed(signal.SIGINT)
        )
        print_to(None, found)
