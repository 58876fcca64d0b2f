"""How long training steps took, and calls outside of them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import ceil, floor, log2
from typing import Final, NamedTuple

from torchprof_hooks.profiles.files.fields import Count

#: Buckets for durations, from one power of two to the next: each is 1.1 % wide.
BUCKETS_PER_OCTAVE: Final = 64


def bucket_of(duration_ns: int) -> int:
    """The number of the bucket for a duration, which rises with it."""
    return floor(BUCKETS_PER_OCTAVE * log2(max(duration_ns, 1)))


class Bucket(NamedTuple):
    """Steps of about one duration.

    number: see `bucket_of`.
    total_ns: what they took together.
    """

    number: Count
    steps: Count
    total_ns: Count


class StepTimes(NamedTuple):
    """Durations of training steps and of evaluation calls, in nanoseconds.

    A training step ends with that of the optimizer (of several, with the last one of a
    round of all of them), however many calls it is made of; without optimizers of
    torch, it ends where the next forward after a backward pass begins. An evaluation
    is a call from outside of all others in which no graph is made, while no graph waits
    for its backward pass: validation, generation, inference. What comes between two of
    them counts for the later one, so that all of it adds up.

    Numbers and sums are exact, whatever is merged. Quantiles are means of steps whose
    durations differ by 1.1 % at most: they are that exact. Memory depends on how many
    different durations there are, not on how many steps.

    first_steps, first_ns: the first step of each run, in which much is done for the
        first time.
    later: all the others, by rising duration.
    evaluations, evaluation_ns: evaluation calls.
    """

    first_steps: Count = 0
    first_ns: Count = 0
    later: tuple[Bucket, ...] = ()
    evaluations: Count = 0
    evaluation_ns: Count = 0

    def broken_promise(self) -> str:
        """What is wrong with the values taken together, "" if nothing."""
        numbers = [bucket.number for bucket in self.later]
        if any(after <= before for before, after in pairwise(numbers)):
            return "has buckets that are not in their order"
        if not all(bucket.steps for bucket in self.later):
            return "has a bucket without steps"
        return ""

    @property
    def steps(self) -> int:
        """All training steps."""
        return self.first_steps + self.later_steps

    @property
    def later_steps(self) -> int:
        """Those that are not the first of a run."""
        return sum(bucket.steps for bucket in self.later)

    @property
    def later_ns(self) -> int:
        """What these took together."""
        return sum(bucket.total_ns for bucket in self.later)

    @property
    def mean_ns(self) -> float:
        """Mean of the steps that are not the first; 0.0 if there are none."""
        return self.later_ns / max(self.later_steps, 1)

    @property
    def first_mean_ns(self) -> float:
        """That of the first steps; 0.0 if there are none."""
        return self.first_ns / max(self.first_steps, 1)

    @property
    def evaluation_mean_ns(self) -> float:
        """That of evaluation calls; 0.0 if there are none."""
        return self.evaluation_ns / max(self.evaluations, 1)

    def quantile_ns(self, share: float) -> float:
        """What so many of the later steps took at most, up to 1.1 %; 0.0 if there are
        none.

        share: 0.5 for the median, 0.9 for the 90th percentile.
        """
        wanted = max(ceil(share * self.later_steps), 1)
        for bucket in self.later:
            wanted -= bucket.steps
            if wanted <= 0:
                return bucket.total_ns / bucket.steps
        return 0.0

    def merge(self, other: StepTimes) -> StepTimes:
        """Both together."""
        return StepTimes(
            self.first_steps + other.first_steps,
            self.first_ns + other.first_ns,
            sorted_buckets([*self.later, *other.later]),
            self.evaluations + other.evaluations,
            self.evaluation_ns + other.evaluation_ns,
        )


def sorted_buckets(buckets: Iterable[Bucket]) -> tuple[Bucket, ...]:
    """One of each number, in their order."""
    found: dict[int, Bucket] = {}
    for bucket in buckets:
        _, steps, total_ns = found.get(bucket.number, (0, 0, 0))
        found[bucket.number] = Bucket(
            bucket.number, bucket.steps + steps, bucket.total_ns + total_ns
        )
    return tuple(found[number] for number in sorted(found))


#: Of profiles that know nothing about steps.
NO_STEP_TIMES: Final = StepTimes()
