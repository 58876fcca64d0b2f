"""The documents of programs, comparisons and ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.compared_runs import in_turns
from tests.golden import SAMPLES, sample
from torchprof_hooks.documents.build.compare import comparison_document
from torchprof_hooks.documents.build.exit_report import ExitLayout
from torchprof_hooks.documents.build.ranks import ranks_document
from torchprof_hooks.documents.render.text import text_of
from torchprof_hooks.documents.report import program_text
from torchprof_hooks.files.ranks import read_run
from torchprof_hooks.profiles.compare import compare


def _theano() -> str:
    layout = ExitLayout(n_ops=8, n_apply=8)
    return program_text(sample("exit_report"), layout, with_memory=True)


def _compiled() -> str:
    return program_text(sample("compiled"), ExitLayout(n_ops=4, n_apply=4))


def _comparison() -> str:
    """The machine was faster when the second one was recorded."""
    found = compare(sample("char_lm"), sample("char_lm_functions"))
    return text_of(comparison_document(found, max_rows=12), unit="auto_foreach")


def _comparison_in_turns() -> str:
    found = compare(*in_turns(0, 7, {7: 1.1}))
    return text_of(comparison_document(found, max_rows=12), unit="auto_foreach")


def _ranks() -> str:
    return text_of(ranks_document(read_run(SAMPLES / "ranks")))


CASES: Final[dict[str, Callable[[], str]]] = {
    "theano.txt": _theano,
    "compiled.txt": _compiled,
    "comparison.txt": _comparison,
    "comparison_in_turns.txt": _comparison_in_turns,
    "ranks.txt": _ranks,
}
