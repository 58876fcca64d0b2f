"""`load_ranks`, which reads the profiles of all ranks of a run, and `Ranks`, which it
returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.options import check_path
from torchprof_hooks.profiles.ranks.ranks import RanksData
from torchprof_hooks.reportable import Reportable

if TYPE_CHECKING:
    from torchprof_hooks.documents.document import Document


@dataclass(frozen=True, eq=False)
class Ranks(Reportable, RanksData):
    """The ranks of one run, side by side.

    ranks: those that have a file, in their order.
    world_size: how many ranks the run has.
    missing: ranks that have no file.
    stale: ranks whose files are older than the newest by more than two flushes.
    notes: which files were left out, and why; and what makes ranks hard to compare.
    folder: the folder of the files.
    """

    def report(
        self, by: Grouping = "module", *, max_rows: int = 10, width: int = 120
    ) -> str:
        """Which rank the others wait for, and where it spends that time; the phases of
        each rank, side by side; and the rows in which ranks differ.

        by: what the rows are, as for `Profile.rows`.
        max_rows: the most rows of each table.
        width: characters in a line.

        Raises:
            TypeError, ValueError: a parameter is not valid.
        """
        from torchprof_hooks.documents.build.ranks import ranks_document
        from torchprof_hooks.documents.render.text import text_of

        with self._shown():
            return text_of(ranks_document(self, by, max_rows), width=width)

    def _document(self, level: Literal["page", "json", "markdown"]) -> Document:
        from torchprof_hooks.documents.build.ranks import ranks_document

        return ranks_document(self, "module")


def load_ranks(folder: str | Path) -> Ranks:
    """The ranks of the newest run that has files in a folder, as ``--save`` and
    ``profile(save=...)`` write them.

    Raises:
        ProfileFileError: the folder has no file of any rank.
        OSError: it is no folder, or cannot be read.

    Example:
        >>> ranks = torchprof_hooks.load_ranks("profiles")
        >>> ranks.verdict.rank, ranks.verdict.reason.row
        (2, 'Net.head')
        >>> print(ranks)
    """
    from torchprof_hooks.files.ranks import read_run

    return Ranks.of(read_run(check_path("folder", folder)))
