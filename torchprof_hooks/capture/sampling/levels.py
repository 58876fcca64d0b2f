"""How closely steps can be looked at, and runs of steps that are looked at alike."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Level(IntEnum):
    """How closely a step is looked at: nothing but its end is noticed; what forward,
    backward, optimizers and data loading take, each as a whole; modules; functions."""

    STEPS = 0
    PHASES = 1
    MODULES = 2
    FUNCTIONS = 3


class Run(NamedTuple):
    """So many steps, looked at on the same level."""

    level: Level
    steps: int = 1


class Ended(NamedTuple):
    """A run that has ended, and what is known of it.

    spans: calls, and backward passes of calls, that were measured, or watched.
    pauses: calls from outside of all others, and whole backward passes.
    calls: how many of the pauses are calls of modules.
    aside_ns: time that we took between runs and blocks, and to place new calls.
    evaluations: how many of the steps are evaluation calls.
    """

    run: Run
    duration_ns: int
    spans: int = 0
    pauses: int = 0
    aside_ns: int = 0
    evaluations: int = 0
    calls: int = 0

    @property
    def is_training(self) -> bool | None:
        """Whether these were training steps, or evaluation calls, which are only
        compared with each other; None: some of each."""
        is_mixed = 0 < self.evaluations < self.run.steps
        return None if is_mixed else not self.evaluations
