"""How closely steps can be looked at, and runs of steps that are looked at alike."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from torchprof_hooks.capture.sampling.steps.untold_ends import Ends
from torchprof_hooks.capture.tracking.tracker import Tracker


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


class Running:
    """Steps that are looked at on the same level, until there are none left.

    steps_left: of the run; below 0 if it could not end.
    duration_ns: of the part of it that is booked.
    pauses, calls, evaluations: see `Ended`.
    aside_ns: time that we took before the run, and in it between two blocks.
    """

    def __init__(self, top: Level) -> None:
        self._run = Run(top)
        self.steps_left = 1
        self.duration_ns = self.aside_ns = 0
        self.pauses = self.calls = self.evaluations = 0
        self._spans = self._placing_ns = 0

    @property
    def level(self) -> Level:
        """The level on which its steps are looked at."""
        return self._run.level

    def choose(self, run: Run) -> None:
        """`run` comes next."""
        self._run, self.steps_left = run, run.steps

    def begin(self, tracker: Tracker) -> None:
        """The chosen run begins, counted by `tracker`. `aside_ns` has begun before."""
        self.duration_ns = self.pauses = self.calls = self.evaluations = 0
        self._spans, self._placing_ns = tracker.log.spans, tracker.tree.placing_ns

    def count(self, ends: Ends) -> None:
        """All this, which nobody was told of, has ended in the run."""
        self.steps_left -= ends.evaluations
        self.evaluations += ends.evaluations
        self.pauses += ends.calls
        self.calls += ends.calls

    def go_on(self, before: Tracker, now: Tracker) -> None:
        """The run goes on, counted by another tracker."""
        self._spans += now.log.spans - before.log.spans
        self._placing_ns += now.tree.placing_ns - before.tree.placing_ns

    def ended(self, tracker: Tracker, untold_calls: int) -> Ended:
        """The run so far, as if it ended now.

        untold_calls: how many more calls there were that the cursor only counted.
        """
        steps = self._run.steps - self.steps_left  # more, if it could not end
        return Ended(
            self._run._replace(steps=max(steps, 1)),
            self.duration_ns,
            tracker.log.spans - self._spans,
            self.pauses + untold_calls,
            self.aside_ns + tracker.tree.placing_ns - self._placing_ns,
            self.evaluations,
            self.calls + untold_calls,
        )
