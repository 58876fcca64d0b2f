"""Base classes that give profiles, profilers and the ranks of a run their reports and
exports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from torchprof_hooks.profiles.names import (
    Grouping,
    Library,
    PlotKind,
    SortBy,
    TimeUnit,
)
from torchprof_hooks.profiles.options import (
    check_file,
    check_flag,
    check_path,
    keyword_only,
)

if TYPE_CHECKING:
    from torchprof_hooks.profiles.profile import Profile
    from torchprof_hooks.profiles.ranks.ranks import Ranks


class Reportable:
    """Base of what has a text report, which ``print`` shows, too.

    The code for reports is imported with the first report: few programs need it.
    """

    __slots__ = ()

    def report(
        self,
        *,
        full: bool = False,
        unit: TimeUnit = "auto",
        width: int = 120,
        max_rows: int | None = None,
        sort_by: SortBy | None = None,
        corrected: bool = True,
    ) -> str:
        """Where the time went, on one screen: phases, steps, the modules, functions and
        lines of the program that took most, the peak of memory, tips, and what
        measuring took; what was not measured is left out. With any of `unit`,
        `max_rows` and `sort_by`: the tree of modules as a table, with tables of
        functions and of memory if these were measured.

        Args:
            full: the tables below the screen.
            unit: of the tables: "sec", "ms", "us", "ns", one for the whole table
                ("auto") or the best for each cell ("auto_foreach").
            width: characters per line that a table may take.
            max_rows: rows of each table; by default 40 modules, 20 functions and 10
                call sites. The rows left out are summed up in one line.
            sort_by: the column by which rows are chosen and sorted, the largest first:
                "calls", "forward", "backward", "recompute", "device", "self" or
                "total". By default modules are in the order of their first calls, and
                functions are sorted by their own time.
            corrected: whether the time that measuring took is a row of its own, or is
                left in the rows in which it was spent (see `Profile.corrected`).

        Raises:
            TypeError, ValueError: a parameter has an invalid type or value.

        Example:
            >>> print(prof.report(max_rows=5))
            torchprof_hooks: 2.00sec wall, 10 steps of 180.00ms ...
            <BLANKLINE>
            module        calls  forward     self  backward     self    total     %
            -----------------------------------------------------------------------
            Net              10  1.00sec  50.00ms  500.00ms  10.00ms  1.50sec  75.0
              fc: Linear     10  0.95sec           490.00ms           1.44sec  72.0
            ... 3 more rows, 10.0 %
        """
        from torchprof_hooks.reports.text import TableLayout, report

        layout = TableLayout(unit, width, max_rows, sort_by)
        profile = self._reported_profile()
        return report(profile, layout, full=full, corrected=corrected)

    @keyword_only("unit", "file")
    def print_report(
        self,
        *,
        unit: TimeUnit = "auto",
        file: TextIO | None = None,
        full: bool = False,
        width: int = 120,
        max_rows: int | None = None,
        sort_by: SortBy | None = None,
        corrected: bool = True,
    ) -> None:
        """Print `report` with these parameters to `file`, by default standard output.
        The screen has colours if the file is a terminal, unless the environment has
        ``NO_COLOR``.

        Raises:
            TypeError, ValueError: a parameter has an invalid type or value.
        """
        from torchprof_hooks.reports.text import TableLayout, report

        check_file("file", file)
        layout, stream = TableLayout(unit, width, max_rows, sort_by), file or sys.stdout
        profile = self._reported_profile()
        text = report(profile, layout, full=full, corrected=corrected, stream=stream)
        print(text, file=stream)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """The report as plain text, for notebook front ends that show no HTML."""
        return {"text/plain": self.report()}

    def __str__(self) -> str:
        return self.report()

    def _reported_profile(self) -> Profile:
        raise NotImplementedError


class Exportable:
    """Base of what can become a page, a chart, a data frame, and named numbers."""

    __slots__ = ()

    def to_html(self, path: str | Path, *, corrected: bool = True) -> None:
        """Write a page that shows the profile to one file. A browser opens it without a
        network; without JavaScript, it still shows the picture and the table.

        corrected: as for `report`.

        Raises:
            OSError: the file cannot be written.
        """
        from torchprof_hooks.reports.html.page import profile_page, write_page

        check_flag("corrected", corrected)
        where = check_path("path", path)
        write_page(profile_page(self._reported_profile(), corrected=corrected), where)

    def to_dataframe(
        self, by: Grouping = "module", *, library: Library | None = None
    ) -> Any:
        """The rows as a data frame: one line for each row of `Profile.rows(by)` and
        each of its phases, times in nanoseconds as they were measured. The column
        ``self_ns`` adds up to the wall time.

        library: "pandas" or "polars", either of which is an extra; by default the first
            of them that is installed.

        Raises:
            ImportError: the library is not installed.
            ValueError: unknown `by` or `library`.

        Example:
            >>> frame = prof.to_dataframe("class")
            >>> frame.groupby("phase").self_ns.sum()
        """
        from torchprof_hooks.reports.plots import dataframe

        return dataframe(self._reported_profile(), by, library)

    def plot(self, kind: PlotKind = "modules", *, ax: Any = None) -> Any:
        """Draw a chart with matplotlib, which is an extra, and return its axes.

        Args:
            kind: "modules" (own times of the most expensive modules, layers of a kind
                together), "phases" (times of phases) or "memory" (what modules leave
                in use when forward returns).
            ax: the axes to draw on; by default those of a new figure.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: unknown `kind`; no module was called; or memory was not
                measured.
        """
        from torchprof_hooks.reports.plots import plot

        return plot(self._reported_profile().corrected(), kind, ax)

    def _repr_html_(self) -> str:
        """The page of `to_html`, which a notebook shows as the result of a cell."""
        from torchprof_hooks.reports.html.page import framed, profile_page

        return framed(profile_page(self._reported_profile()))

    def scalars(
        self, top: int = 10, *, since: Profile | None = None
    ) -> dict[str, float]:
        """Numbers for TensorBoard and similar tools, by names that stay the same.

        ``steps`` (measured ones), ``overhead`` (share of the time that measuring took),
        ``time/step_ms`` with ``_median_ms`` and ``_p90_ms`` (of all steps but the first
        of a run), ``time/evaluation_ms`` (of a call), ``time/forward_ms`` and so on for
        each phase, ``mfu``, ``hfu`` (shares, see `Profile.utilisation`) and
        ``items_per_second``, ``memory/peak_mb``, ``module/NAME/forward_ms``,
        ``backward_ms``, ``recompute_ms``. Times of phases and modules are own times in
        a measured step, on average, or of all that was measured, if there was no step.
        What was not measured has no name here; a phase that took nothing is 0.

        Args:
            top: how many modules: those with the most own time. Layers of one class
                whose names differ in numbers are one: ``Net.blocks.0`` and
                ``Net.blocks.1`` are ``Net.blocks._-Block``.
            since: an earlier profile of the same run; only what came later counts then
                (but for the peak of memory, utilisation and items, which are of all).

        Raises:
            TypeError, ValueError: `top` is not a whole number, 0 or more.

        Example:
            >>> for name, value in prof.scalars(top=3).items():
            ...     writer.add_scalar(name, value, step)
        """
        from torchprof_hooks.reports.export.scalars import scalars

        return scalars(self._reported_profile(), top, since)

    def _reported_profile(self) -> Profile:
        raise NotImplementedError


class ReportableRanks:
    """Base of what has a report of ranks, which ``print`` shows, too."""

    def report(
        self, by: Grouping = "module", *, max_rows: int = 10, width: int = 120
    ) -> str:
        """Which rank the others wait for, and where it spends that time; the phases of
        each rank, side by side; and the rows in which ranks differ (see `ranks_report`
        for a sample).

        by: what the rows are, as for `Profile.rows`.
        """
        from torchprof_hooks.reports.ranks.text import ranks_report

        return ranks_report(self._reported_ranks(), by, max_rows, width)

    def __str__(self) -> str:
        return self.report()

    def _reported_ranks(self) -> Ranks:
        raise NotImplementedError
