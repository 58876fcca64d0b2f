"""`compare`, which finds what became slower, and `Comparison`, which it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from torchprof_hooks.files.collector import without_collections
from torchprof_hooks.profiles.compare import ComparisonData
from torchprof_hooks.profiles.compare import compare as compare_runs
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.options import check_share
from torchprof_hooks.reportable import Reportable

if TYPE_CHECKING:
    from torchprof_hooks.documents.document import Document


class Comparison(Reportable, ComparisonData):  # noqa: D101 - that of `ComparisonData`
    __doc__ = ComparisonData.__doc__

    def report(self, *, max_rows: int | None = None, width: int = 120) -> str:
        """What became slower and faster, what all rows have in common, and the rows.

        max_rows: the most rows of the table; 40 by default, and in any case those that
            became slower.
        width: characters in a line.
        """
        from torchprof_hooks.documents.build.compare import comparison_document
        from torchprof_hooks.documents.render.text import text_of

        with self._shown():
            document = comparison_document(self, max_rows=max_rows, is_text=True)
            return text_of(document, width=width, unit="auto_foreach")

    def _document(self, level: Literal["page", "json", "markdown"]) -> Document:
        from torchprof_hooks.documents.build.compare import comparison_document

        return comparison_document(self, is_text=level == "markdown")


def compare(
    old: ProfileData | Sequence[ProfileData],
    new: ProfileData | Sequence[ProfileData],
    by: Grouping = "module",
    threshold: float | str = 0.05,
) -> Comparison:
    """What became slower between runs before and after a change, for each row of
    `Profile.rows` and phase, and for a whole step.

    How much runs differ by chance is known from two or more on either side, best in
    turns (old, new, new, old, ...), so that the machine is the same for both:
    ``python -m torchprof_hooks compare --run old.py new.py`` does that.

    Args:
        old: the runs before the change: a profile of each, or of the only one.
        new: those after it.
        by: what the rows are.
        threshold: a smaller change does not matter: 0.05 or "5%".

    Raises:
        TypeError, ValueError: a parameter is not valid; a side has no runs, several
            ranks of one, or one of them twice; or these are not runs of one program.

    Example:
        >>> found = torchprof_hooks.compare(olds, news)
        >>> [(change.name, change.relative_change) for change in found.slower]
        [('Net.blocks.1.mlp', 0.102)]
        >>> print(found)
    """
    share = check_share("threshold", threshold)
    with without_collections():
        return Comparison.of(compare_runs(old, new, by, share))
