"""What the timers of modules and of functions have in common."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final, Literal, TextIO, TypedDict

from torchprof_hooks.profiles.names import Phase, TimeUnit
from torchprof_hooks.profiles.options import check_file, keyword_only


class _Required(TypedDict):
    elapsed_time: float
    occurrence: int


class TimerSummary(_Required, total=False):
    """Sums for one name, in seconds, and the number of calls, `occurrence`.

    It has `backward_time` if a hook on modules was made with ``backward=True``;
    `forward_time`, `backward_time` and `recompute_time` if a hook on functions was made
    with ``phases=True``.
    """

    forward_time: float
    backward_time: float
    recompute_time: float


_PhaseField = Literal["forward_time", "backward_time", "recompute_time"]
PHASE_FIELDS: Final[dict[Phase, _PhaseField]] = {
    "forward": "forward_time",
    "backward": "backward_time",
    "recompute": "recompute_time",
}


class TimeReport(ABC):
    """A hook that prints a table of times.

    name, _name_header: of the hook, and the header of the names in its table.
    """

    name: str
    _name_header: str

    @abstractmethod
    def summary(self) -> dict[str, TimerSummary]:
        """Sums by name, in the order in which the first calls ended."""

    @keyword_only("unit", "file")
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
