"""Samples in the documentation: what a command prints for a stored profile.

A block of text in a page is such a sample if a comment above it has the command::

    <!-- sample: show docs/samples/char_lm.json --by class -->

``python -m tests.docs_samples`` writes what the commands print now into the pages.
"""

from __future__ import annotations

import os
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from torchprof_hooks.program import file_tools

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_SAMPLE = re.compile(
    r"(<!-- sample: (.*) -->\n```(?:text)?\n)(.*?)(?=```\n)", re.DOTALL
)


def printed(command: str) -> str:
    """What a command for files prints, in lines of 120 characters at most."""
    arguments = [
        str(ROOT / part) if part.startswith("docs/") else part
        for part in command.split()
    ]
    text = StringIO()
    with redirect_stdout(text), patch.dict(os.environ, COLUMNS="120"):
        assert file_tools.main(arguments) == 0, command
    return text.getvalue()


def with_samples(page: str) -> str:
    """A page with what the commands above its samples print now."""
    return _SAMPLE.sub(lambda found: found[1] + printed(found[2]), page)


def commands(page: str) -> list[str]:
    """The commands of the samples in a page."""
    return [command for _, command, _ in _SAMPLE.findall(page)]


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_samples(path.read_text("utf-8")), "utf-8")
