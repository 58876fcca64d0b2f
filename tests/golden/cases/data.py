"""What programs get: a report as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.golden import sample
from torchprof_hooks.documents.report import to_json

CASES: Final[dict[str, Callable[[], str]]] = {
    "report.json": lambda: to_json(sample("char_lm"), "class")
}
