"""Steps of a program that were measured equally closely."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from torchprof_hooks.profiles.files.fields import OPTIONAL, Count
from torchprof_hooks.profiles.profile import Profile

#: Calls of modules count as known if they were not watched in up to this share of the
#: time.
_MOST_UNWATCHED: Final = 1 / 8


class Stratum(NamedTuple):
    """Steps and evaluation calls of one kind, how many have ended, and what these took.
    The profile has what came after the last one as well.

    nodes: how many autograd nodes were made in them; 0 if that is not known.
    unseen_ns: what the steps would have taken, had only their ends been seen: per node,
        as long as in such steps just before. 0 if that is not known.
    backward_ns, optimizers_ns: what backward passes, and steps of optimizers, took, if
        these are timed in steps of which nothing else is known; else 0.
    unwatched_ns: the time in which evaluation calls were not told apart: they are in
        the training steps that came after them.
    """

    profile: Profile = Profile()
    steps: Count = 0
    steps_ns: Count = 0
    nodes: Annotated[Count, OPTIONAL] = 0
    unseen_ns: Annotated[Count, OPTIONAL] = 0
    backward_ns: Annotated[Count, OPTIONAL] = 0
    optimizers_ns: Annotated[Count, OPTIONAL] = 0
    unwatched_ns: Annotated[Count, OPTIONAL] = 0

    @property
    def is_unwatched(self) -> bool:
        """Whether evaluation calls were not told apart, mostly."""
        return 2 * self.unwatched_ns > self.profile.wall_ns

    @property
    def knows_calls(self) -> bool:
        """Whether calls of modules from outside were watched nearly all of the time."""
        has_calls = any(phase == "forward" for _, phase in self.profile.cells)
        most_ns = _MOST_UNWATCHED * self.profile.wall_ns
        return has_calls and self.unwatched_ns <= most_ns

    @property
    def is_of_training(self) -> bool:
        """Whether all calls make nodes: those of evaluations do not."""
        return self.nodes > 0 and not self.profile.step_times.evaluations
