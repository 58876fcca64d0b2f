"""What a profiler does with a profile: adds what rates need and where it comes from,
saves it, and prints who held the memory when that ran out."""

from __future__ import annotations

import atexit
import signal
import sys
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from torchprof_hooks.kernel.torch_names.distributed import mesh_coordinates
from torchprof_hooks.measure.origin import Origin
from torchprof_hooks.measure.signals import interrupted_exit
from torchprof_hooks.profiles.options import (
    MOST_FLOPS,
    check_positive,
    check_whole,
    print_to,
)

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import P, ProfileData
    from torchprof_hooks.profiles.peak import Peak
    from torchprof_hooks.profiles.provenance import Provenance


#: What the allocator of the CPU says (it raises no class of its own).
_ON_THE_CPU: Final = "can't allocate memory"


class Rates(NamedTuple):
    """The options of `profile` for rates, checked.

    peak_flops: operations per second; None if the user gave no number.
    items: items per step; 0 if the user gave no number.
    """

    peak_flops: int | None = None
    items: int = 0

    def added(self, profile: P) -> P:
        """The profile with its items, and with the peak, if a data sheet has it."""
        if not (self.items or profile.has_functions):
            return profile
        peak = self._peak(profile)
        return replace(profile, peak=peak, items=self.items * profile.steps)

    def _peak(self, profile: P) -> Peak | None:
        """The user's peak, or that of the device that did most operations by its data
        sheet; None if it is not known."""
        from torchprof_hooks.documents.utilisation import counted_types
        from torchprof_hooks.measure.peaks import device_peak
        from torchprof_hooks.profiles.peak import Peak

        if self.peak_flops is None:
            return device_peak(*counted_types(profile))
        return Peak(self.peak_flops, "given as peak_flops")


def checked_rates(peak_flops: object, items_per_step: object, functions: bool) -> Rates:
    """Check the user's options, and make `Rates` of them."""
    items = check_whole("items_per_step", items_per_step, 0)
    if peak_flops is None:
        return Rates(None, items)
    check_positive("peak_flops", peak_flops)
    if not functions:
        raise ValueError("peak_flops needs functions=True, which counts operations")
    flops = float(peak_flops)  # type: ignore[arg-type]
    if flops > MOST_FLOPS:
        raise ValueError(
            f"peak_flops must be below {MOST_FLOPS:.0e}, not {peak_flops!r}"
        )
    return Rates(max(round(flops), 1), items)


class Saving:
    """Adds the provenance to the profiles of one profiler and, if there is a path,
    saves them.

    flush_secs: seconds between two writes while the profiler measures.
    ranks_report: whether rank 0 prints the report of all ranks at its exit.
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
            from torchprof_hooks.files.own_file import OwnFile

            self._file = OwnFile(path, self._origin.provenance, flush_secs)

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
            atexit.register(_print_ranks, self._path, provenance)
            interrupted_exit.registered()


def _print_ranks(path: Path, provenance: Provenance) -> None:
    # The program has ended: no error here matters.
    with interrupted_exit.uninterrupted() as delay, suppress(Exception):
        from torchprof_hooks.documents.ranks_at_exit import final_report

        found = final_report(
            path, provenance, is_hurried=lambda: delay.has_delayed(signal.SIGINT)
        )
        print_to(None, found)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the exception says that there was no memory for a tensor."""
    out_of_memory = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    return isinstance(error, out_of_memory) or (
        isinstance(error, RuntimeError) and _ON_THE_CPU in str(error)
    )


def print_failure(make: Callable[[], ProfileData]) -> None:
    """Print to standard error who had the memory, if that is known, else the peak;
    nothing if memory is not measured. Nothing that goes wrong here replaces the
    exception of the program.

    make: returns the profile.
    """
    with suppress(Exception):
        from torchprof_hooks.documents.build.memory import (
            failure_document,
            failure_of,
            memory_text,
        )
        from torchprof_hooks.documents.render.text import text_of

        profile = make()
        memory = profile.memory
        if memory is None or not memory.source:
            return
        text = f"torchprof_hooks: memory ran out; {memory_text(profile, memory)}"
        if failure_of(profile) is not None:
            text = text_of(failure_document(profile))
        print(text, file=sys.stderr, flush=True)
