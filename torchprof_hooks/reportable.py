"""`Reportable`: what has reports and exports. It imports little: every user waits for
the imports of what measures, which is one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

from torchprof_hooks.files.collector import without_collections
from torchprof_hooks.profiles.names import Grouping, SortBy, TimeUnit
from torchprof_hooks.profiles.options import check_file, check_path

if TYPE_CHECKING:
    from torchprof_hooks.documents.document import Document

R = TypeVar("R", bound="Reportable")


class Reportable:
    """Base of what has a document: profiles, comparisons, ranks of a run."""

    @classmethod
    def of(cls: type[R], data: Any) -> R:
        """The same data, which has no documents, as an object that has some."""
        return cls(**{each.name: getattr(data, each.name) for each in fields(data)})

    def report(self, *, width: int = 120) -> str:
        """The report as text. width: characters in a line."""
        raise NotImplementedError

    def to_html(self, path: str | Path) -> None:
        """Write a page for a browser to one file. It needs no network; without
        JavaScript, it still shows the tables.

        Raises:
            OSError: the file cannot be written.
        """
        where = check_path("path", path)
        from torchprof_hooks.files.writing import write_text

        with self._shown() as shown:
            write_text(shown._page(), where)

    def to_json(self) -> str:
        """The report for programs: `answers` first, then tables with raw numbers.
        docs/json.md has the schema.

        Example:
            >>> json.loads(prof.to_json())["answers"]["hottest_module"]["answer"]
            'Net.blocks.*.mlp'
        """
        from torchprof_hooks.documents.render.json import json_of

        with self._shown() as shown:
            return json_of(shown._document("json"))

    def to_markdown(self) -> str:
        """A short report in Markdown, for an issue or an agent: the answers, advice,
        and the rows that matter most.

        Example:
            >>> print(prof.to_markdown())
        """
        from torchprof_hooks.documents.render.markdown import markdown_of

        with self._shown() as shown:
            return markdown_of(shown._document("markdown"))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """The report as plain text, for notebook front ends that show no HTML."""
        return {"text/plain": self.report()}

    def _repr_html_(self) -> str:
        """The page of `to_html`, which a notebook shows as the result of a cell."""
        from torchprof_hooks.documents.render.html import framed

        with self._shown() as shown:
            return framed(shown._page())

    def __str__(self) -> str:
        return self.report()

    def _page(self) -> str:
        from torchprof_hooks.documents.render.html import page_of

        return page_of(self._document("page"))

    def _document(self, level: Literal["page", "json", "markdown"]) -> Document:
        """What a page has, or the report for programs."""
        raise NotImplementedError

    @contextmanager
    def _shown(self) -> Iterator[Any]:
        """What has the document, and that something is made of it."""
        with without_collections():
            yield self


class ProfileReports(Reportable):
    """Base of a profile, and of what measures one."""

    def report(
        self,
        *,
        full: bool = False,
        unit: TimeUnit = "auto",
        width: int = 120,
        max_rows: int | None = None,
        sort_by: SortBy | None = None,
    ) -> str:
        """Where the time went, on one screen: the answers, phases, steps, the modules,
        functions and lines of the program that took most, the peak of memory, tips, and
        what measuring took. It leaves out what was not measured.

        Args:
            full: whether tables follow the screen: the tree of modules, and tables of
                functions and of memory if these were measured.
            unit: the unit of times in the tables: "sec", "ms", "us", "ns", one for the
                whole table ("auto") or the best for each cell ("auto_foreach").
            width: characters in a line.
            max_rows: rows of each table; by default 40 modules, 20 functions and 10
                call sites. The rows left out are summed up in one line.
            sort_by: the column by which rows are chosen and sorted, the largest first:
                "calls", "forward", "backward", "recompute", "device", "self" or
                "total". By default modules are in the order of their first calls, and
                functions are sorted by their own time.

        Raises:
            TypeError, ValueError: a parameter has an invalid type or value; or `unit`,
                `max_rows` or `sort_by`, which are for tables, is given without `full`.
        """
        with self._shown() as profile:
            from torchprof_hooks.documents.report import Layout, report

            layout = Layout(unit, width, max_rows, sort_by)
            return report(profile, layout, full=full)

    def print_report(
        self,
        *,
        unit: TimeUnit = "auto",
        file: TextIO | None = None,
        full: bool = False,
        width: int = 120,
        max_rows: int | None = None,
        sort_by: SortBy | None = None,
    ) -> None:
        """Print the `report` with these parameters to `file`, by default standard
        output. The screen has colours if the file is a terminal, unless the environment
        has ``NO_COLOR``.

        Raises:
            TypeError, ValueError: as for `report`.
        """
        check_file("file", file)
        with self._shown() as profile:
            from torchprof_hooks.documents.report import Layout, report

            layout, stream = Layout(unit, width, max_rows, sort_by), file or sys.stdout
            text = report(profile, layout, full=full, stream=stream)
            print(text, file=stream)

    def to_dataframe(self, by: Grouping = "module") -> Any:
        """The rows as a data frame of pandas, which is an extra: one line for each row
        of `Profile.rows(by)` and each of its phases, times in nanoseconds. The column
        ``self_ns`` adds up to the wall time.

        Raises:
            ImportError: pandas is not installed.
            ValueError: unknown `by`.

        Example:
            >>> frame = prof.to_dataframe("class")
            >>> frame.groupby("phase").self_ns.sum()
        """
        with self._shown() as profile:
            from torchprof_hooks.documents.export.frames import dataframe

            return dataframe(profile, by)

    def scalars(
        self, top: int = 10, *, since: ProfileReports | None = None
    ) -> dict[str, float]:
        """Numbers for TensorBoard and similar tools, by names that stay the same.

        ``steps`` (measured ones), ``overhead`` (share of their time that measuring took
        at least),
        ``time/step_ms`` with ``_median_ms`` and ``_p90_ms`` (of all steps but the first
        of a run), ``time/evaluation_ms`` (of a call), ``time/forward_ms`` and so on for
        each phase, ``mfu``, ``hfu`` (shares, see `Profile.utilisation`) and
        ``items_per_second``, ``memory/peak_mb``, ``module/NAME/forward_ms``,
        ``backward_ms``, ``recompute_ms``. Times of phases and modules are mean own
        times per step, with evaluation calls between steps; if there was no step, of
        all that was measured. What was not measured has no name here; a phase that took
        no time is 0.

        Args:
            top: how many modules to include: those with the most own time. Layers of
                one class whose names differ in numbers count as one: ``Net.blocks.0``
                and ``Net.blocks.1`` are ``Net.blocks._-Block``.
            since: an earlier profile of the same run; then only what came later counts
                (but the peak of memory, utilisation and items are of the whole run).

        Raises:
            TypeError, ValueError: `top` is not a whole number, 0 or more, or `since` is
                no profile.

        Example:
            >>> for name, value in prof.scalars(top=3).items():
            ...     writer.add_scalar(name, value, step)
        """
        with self._shown() as profile:
            from torchprof_hooks.documents.export.scalars import scalars

            if since is None:
                return scalars(profile, top, None)
            if not isinstance(since, ProfileReports):
                raise TypeError(f"since must be an earlier profile, not {since!r}")
            with since._shown() as before:
                return scalars(profile, top, before)
