"""What the ready-made hooks of modules and of functions print: tables of times, and of
bytes."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TextIO, TypedDict

import torch

from torchprof_hooks.instruments.memory.meter import MemoryMeter, memory_meter
from torchprof_hooks.profiles.names import ByteUnit, TimeUnit
from torchprof_hooks.profiles.options import check_file


class _Times(TypedDict):
    elapsed_time: float
    occurrence: int


class TimerSummary(_Times, total=False):
    """Sums for one name, in seconds, and the number of calls, `occurrence`.

    It has `backward_time` if a hook on modules was made with ``backward=True``;
    `forward_time`, `backward_time` and `recompute_time` if a hook on functions was made
    with ``phases=True``.
    """

    forward_time: float
    backward_time: float
    recompute_time: float


class TimeReport(ABC):
    """A hook that prints a table of times.

    name, _name_header: of the hook, and the header of the names in its table.
    """

    name: str
    _name_header: str

    @abstractmethod
    def summary(self) -> dict[str, TimerSummary]:
        """Sums by name, in the order in which the first calls ended."""

    def print_report(
        self, *, unit: TimeUnit = "auto", file: TextIO | None = None
    ) -> None:
        """Print the summary as a table.

        Args:
            unit: "sec", "ms", "us", "ns", "auto" (one unit for the table, chosen for
                the largest value) or "auto_foreach" (one for each value).
            file: where to print; standard output by default.

        Raises:
            TypeError, ValueError: a parameter is not one of these.
        """
        from torchprof_hooks.documents.export.hook_table import render_times

        check_file("file", file)
        summary = self.summary()
        columns = self._columns(summary)
        report = render_times(self.name, self._name_header, summary, unit, columns)
        print(report, file=file or sys.stdout)

    @abstractmethod
    def _columns(self, summary: Mapping[str, TimerSummary]) -> dict[str, str]:
        """The fields of the summary that the table shows, with their headers."""


class _Bytes(TypedDict):
    used_bytes: int
    acquired_bytes: int
    peak_bytes: int
    occurrence: int


class MemoryHookSummary(_Bytes, total=False):
    """Sums for one name, in bytes, and the number of calls, `occurrence`.

    `peak_bytes` is the maximum over calls, and `retained_bytes`, which only hooks on
    modules have, the mean over forward calls.
    """

    retained_bytes: int


class MemoryReport(ABC):
    """A hook that prints a table of bytes.

    name, _name_header: of the hook, and the header of the names in its table.
    device: whose memory to measure; see `memory_meter`.
    """

    name: str
    _name_header: str

    def __init__(self, device: str | torch.device | None) -> None:
        memory_meter(device)  # raises now; the device may be initialised later
        self._device = device

    @abstractmethod
    def summary(self, *, own: bool = False) -> dict[str, MemoryHookSummary]:
        """Sums by name, in the order in which the first calls ended.

        Args:
            own: whether to leave out the bytes of inner calls, which have sums of their
                own. Peaks are always those of the whole call.
        """

    def print_report(
        self, *, unit: ByteUnit = "auto", file: TextIO | None = None
    ) -> None:
        """Print the summary as a table.

        Args:
            unit: "B", "KB", "MB", ... (of 1024 each), "auto" (one unit for each column,
                chosen for its largest value) or "auto_foreach" (one for each value).
            file: where to print; standard output by default.

        Raises:
            TypeError, ValueError: a parameter is not one of these.
        """
        from torchprof_hooks.documents.export.hook_table import render_bytes

        check_file("file", file)
        report = render_bytes(
            self.name, self._name_header, self.summary(), unit, self._note()
        )
        print(report, file=file or sys.stdout)

    def _new_meter(self) -> MemoryMeter:
        return memory_meter(self._device)

    def _note(self) -> str:
        meter = self._new_meter()
        kind = f"{meter.name} (caching allocator)"
        if meter.counts_tensors:
            kind = "tensors on the CPU, by the thread that calls, to the byte"
        return f"Memory of {kind}: what was handed out; freed bytes count, too."
