"""The pages of the documentation show what the program prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.docs_samples import PAGES, samples, with_samples

ROOT = Path(__file__).parents[2]


def shown(page: str) -> list[str]:
    """The outputs that a page shows."""
    return re.findall(r"```text\n(.*?)\n```", page, flags=re.DOTALL)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_all_outputs_are_what_a_command_prints(path: Path) -> None:
    """After a change of a report: ``python -m tests.documents.docs_samples``."""
    page = path.read_text(encoding="utf-8")
    assert with_samples(page) == page
    assert set(shown(page)) == set(samples(page))
    kinds = re.findall(r"^ *```(.*)$", page, flags=re.MULTILINE)[::2]
    assert set(kinds) <= {"python", "sh", "console", "text", "{eval-rst}"}
