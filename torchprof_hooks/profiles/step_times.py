"""Durations of training steps and of evaluation calls."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, log2
from typing import Any, Final, NamedTuple

#: Buckets for durations from one power of two to the next. Each is 1.1 % wide.
BUCKETS_PER_OCTAVE: Final = 64

#: A step is slow if it takes so many times the median, and so much longer than that.
SLOW: Final = 1.5
LEAST_MORE_NS: Final = 1_000_000
#: From fewer steps, it is not known what is usual.
LEAST_STEPS: Final = 8

#: So many slow steps are kept, the slowest ones.
MOST_SLOW: Final = 16


def bucket_of(duration_ns: int) -> int:
    """The number of the bucket for a duration: longer ones have higher numbers."""
    return floor(BUCKETS_PER_OCTAVE * log2(max(duration_ns, 1)))


class Bucket(NamedTuple):
    """Steps of about the same duration.

    number: see `bucket_of`.
    total_ns: the sum of their durations.
    """

    number: int
    steps: int
    total_ns: int


class StepTimes(NamedTuple):
    """Durations of training steps and of evaluation calls, in nanoseconds.

    A training step ends with the last step of an optimizer before one steps again that
    has stepped in it. As long as none of torch's optimizers has stepped, each backward
    pass that runs in no other one is a step. Once `Profiler.step` was called, steps end
    there and nowhere else. An evaluation call is an outermost call that makes no graph,
    before the step's first one that does: validation, inference; with such calls after
    it of modules without parameters, as of a loss. A block, or a function, is one if
    modules are called in it. If the step before had some too, and there are not more
    than four times as many, they are a part of the step, such as a teacher's.
    A step has the time since the step or the evaluation call before it; an evaluation
    call is as long as its calls, on the host.

    Counts and sums are exact, also after merging. Quantiles are exact to 1.1 %, since
    steps whose durations differ by less share a bucket. Memory depends on the number of
    different durations, not on the number of steps.

    first_steps, first_ns: the first steps of runs, which do much for the first time.
    later: all other steps, by rising duration.
    evaluations, evaluation_ns: evaluation calls.
    own: the measured training steps, with the first ones, by how long they took without
        communication with other processes and waiting for them; () if none did either.
    first_evaluations, first_evaluation_ns: the evaluation calls with which runs began,
        before any training step.
    """

    first_steps: int = 0
    first_ns: int = 0
    later: tuple[Bucket, ...] = ()
    evaluations: int = 0
    evaluation_ns: int = 0
    own: tuple[Bucket, ...] = ()
    first_evaluations: int = 0
    first_evaluation_ns: int = 0

    @property
    def steps(self) -> int:
        """How many training steps there were."""
        return self.first_steps + self.later_steps

    @property
    def later_steps(self) -> int:
        """How many training steps were not the first of a run."""
        return sum(bucket.steps for bucket in self.later)

    @property
    def later_ns(self) -> int:
        """Nanoseconds of all training steps that were not the first of a run."""
        return sum(bucket.total_ns for bucket in self.later)

    @property
    def steps_ns(self) -> int:
        """Nanoseconds of all training steps, with the first ones."""
        return self.first_ns + self.later_ns

    @property
    def mean_ns(self) -> float:
        """Mean duration of the steps after the first one; 0.0 without such steps."""
        return self.later_ns / max(self.later_steps, 1)

    @property
    def first_mean_ns(self) -> float:
        """Mean duration of the first steps of runs; 0.0 without steps."""
        return self.first_ns / max(self.first_steps, 1)

    @property
    def later_evaluations(self) -> int:
        """How many evaluation calls there were, but for those with which runs began."""
        return self.evaluations - self.first_evaluations

    @property
    def evaluation_mean_ns(self) -> float:
        """Mean duration of the later evaluation calls; of the first ones, if there are
        no later ones; 0.0 without evaluation calls."""
        if self.later_evaluations:
            later_ns = self.evaluation_ns - self.first_evaluation_ns
            return later_ns / self.later_evaluations
        return self.first_evaluation_mean_ns

    @property
    def first_evaluation_mean_ns(self) -> float:
        """Mean duration of the evaluation calls with which runs began; 0.0 without such
        calls."""
        return self.first_evaluation_ns / max(self.first_evaluations, 1)

    def quantile_ns(self, share: float) -> float:
        """A quantile of the durations of the later steps, exact to 1.1 %; 0.0 without
        such steps.

        share: 0.5 for the median, 0.9 for the 90th percentile.
        """
        wanted = max(ceil(share * self.later_steps), 1)
        for bucket in self.later:
            wanted -= bucket.steps
            if wanted <= 0:
                return bucket.total_ns / bucket.steps
        return 0.0

    @property
    def slow_ns(self) -> float:
        """Later steps that take longer than this are slow; 0.0 if there are too few to
        know what is usual."""
        if self.later_steps < LEAST_STEPS:
            return 0.0
        median_ns = self.quantile_ns(0.5)
        return max(SLOW * median_ns, median_ns + LEAST_MORE_NS)

    def slow_steps(self) -> tuple[int, float]:
        """How many of the later steps are slow, and how much longer than the median
        these took together, in nanoseconds."""
        median_ns, slow_ns = self.quantile_ns(0.5), self.slow_ns
        slow = [b for b in self.later if slow_ns and b.total_ns > slow_ns * b.steps]
        more_ns = (b.total_ns - b.steps * median_ns for b in slow)
        return sum(bucket.steps for bucket in slow), sum(more_ns)

    def merge(self, other: StepTimes) -> StepTimes:
        """The steps and calls of both."""
        return StepTimes(*map(_sum, self, other))

    def without(self, earlier: StepTimes) -> StepTimes:
        """The steps and calls since an earlier moment of the same run."""
        return StepTimes(*map(_difference, self, earlier))


def _sum(one: Any, other: Any) -> Any:
    """The sum of two numbers, or of two tuples of buckets."""
    if isinstance(one, int):
        return one + other
    return sorted_buckets([*one, *other]) if one and other else one or other


def _difference(buckets: Any, earlier: Any) -> Any:
    """The difference of two numbers, or of two tuples of buckets."""
    if isinstance(buckets, int):
        return buckets - earlier
    before = {bucket.number: bucket for bucket in earlier}
    left = []
    for number, steps, total_ns in buckets:
        _, known, known_ns = before.get(number, (number, 0, 0))
        if steps > known:
            left.append(Bucket(number, steps - known, total_ns - known_ns))
    return tuple(left)


def sorted_buckets(buckets: Iterable[Bucket]) -> tuple[Bucket, ...]:
    """One bucket for each number, in rising order."""
    found: dict[int, Bucket] = {}
    for bucket in buckets:
        _, steps, total_ns = found.get(bucket.number, (0, 0, 0))
        found[bucket.number] = Bucket(
            bucket.number, bucket.steps + steps, bucket.total_ns + total_ns
        )
    return tuple(found[number] for number in sorted(found))


#: For profiles without steps.
NO_STEP_TIMES: Final = StepTimes()
