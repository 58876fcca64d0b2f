"""Counts training steps and evaluation calls as they end."""

from __future__ import annotations

from torchprof_hooks.profiles.step_times import (
    Bucket,
    StepTimes,
    bucket_of,
    sorted_buckets,
)


class StepCounter:
    """What becomes `StepTimes`.

    after_backward_ns: time outside of everything between a backward pass and the next
        forward, in steps without an optimizer of torch's: that of another one, most
        likely.
    """

    def __init__(self) -> None:
        self.after_backward_ns = 0
        self.first_steps = self.first_ns = 0
        self.evaluations = self.evaluation_ns = 0
        self._later: dict[int, Bucket] = {}

    def count(self, duration_ns: int, steps: int = 1, *, is_first: bool) -> None:
        """So many training steps have ended, which took so long together, and are taken
        to be alike. Of several, the first is none of those that are kept apart."""
        if is_first and steps == 1:
            self.first_steps += steps
            self.first_ns += duration_ns
            return
        number = bucket_of(duration_ns // steps)
        _, known, total_ns = self._later.get(number, (0, 0, 0))
        self._later[number] = Bucket(number, known + steps, total_ns + duration_ns)

    def evaluation(self, duration_ns: int, calls: int = 1) -> None:
        """So many evaluation calls have."""
        self.evaluations += calls
        self.evaluation_ns += duration_ns

    def add(self, other: StepCounter) -> None:
        """Count what `other` has counted."""
        self.after_backward_ns += other.after_backward_ns
        self.first_steps += other.first_steps
        self.first_ns += other.first_ns
        for bucket in list(other._later.values()):
            self.count(bucket.total_ns, bucket.steps, is_first=False)
        self.evaluation(other.evaluation_ns, other.evaluations)

    def times(self) -> StepTimes:
        """All so far; another thread may count meanwhile."""
        return StepTimes(
            self.first_steps,
            self.first_ns,
            sorted_buckets(list(self._later.values())),
            self.evaluations,
            self.evaluation_ns,
        )
