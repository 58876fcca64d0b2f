"""How much is tried: all that there is, or a part that stands for it.

Some tests do the same with each of hundreds of operators, in each of a dozen ways, or
start an interpreter for each program. `make test` tries some of the ways with each
operator, others with the next one, and forks programs. With the variable below in the
environment, as `make test-all` sets it, everything is tried with everything; it also
runs the tests that are marked as thorough.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import pytest

VARIABLE: Final = "TORCHPROF_HOOKS_THOROUGH"
IS_THOROUGH: Final = bool(os.environ.get(VARIABLE))

#: Of what a test is parametrized with: what is for `make test-all`.
THOROUGH: Final = pytest.mark.thorough

Way = TypeVar("Way")


def some_ways(ways: Sequence[Way], number: int, count: int) -> Sequence[Way]:
    """`count` of the ways for the thing of that number, and the next ones for the next
    thing: all of them in their turns. All at once where tests are thorough."""
    if IS_THOROUGH or count >= len(ways):
        return ways
    return [ways[(number * count + n) % len(ways)] for n in range(count)]


def in_turns(things: Iterable[Any], turn: int, count: int) -> list[Any]:
    """Parameters for one of `count` tests, of which each tries the things whose turn it
    is, one after the other. The rest is for thorough tests. Tuples are several
    parameters."""
    return [
        pytest.param(
            *(thing if isinstance(thing, tuple) else (thing,)),
            marks=() if number % count == turn else THOROUGH,
        )
        for number, thing in enumerate(things)
    ]
