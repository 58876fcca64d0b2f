"""Words of ours on standard error, where there is one."""

from __future__ import annotations

import sys
from contextlib import suppress


def complain(line: str) -> None:
    """Print a line, unless standard error is closed: that is no reason to fail, nor to
    print it in between the outputs of the program."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)
