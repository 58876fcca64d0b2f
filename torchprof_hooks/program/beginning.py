"""When the program began, as far as we can tell."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Final

#: When this was imported: before torch, if we were told to watch the program.
BEGAN_NS: Final = perf_counter_ns()
