"""How much is tried: all that there is, or a part that stands for it.

Some tests do the same with each of hundreds of operators, in each of a dozen ways, or
start an interpreter for each program. `make test` tries some of the ways with each
operator, others with the next one, and forks programs. With the variable below in the
environment, as `make test-all` sets it, everything is tried with everything; it also
runs the tests that are marked as thorough.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

VARIABLE: Final = "TORCHPROF_HOOKS_THOROUGH"
IS_THOROUGH: Final = bool(os.environ.get(VARIABLE))

Way = TypeVar("Way")


def some_ways(ways: Sequence[Way], number: int, count: int) -> Sequence[Way]:
    """`count` of the ways for the thing of that number, and the next ones for the next
    thing: all of them in their turns. All at once where tests are thorough."""
    if IS_THOROUGH or count >= len(ways):
        return ways
    return [ways[(number * count + n) % len(ways)] for n in range(count)]
