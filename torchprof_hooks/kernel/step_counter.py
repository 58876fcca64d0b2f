"""Counts training steps and evaluation calls as they end, and remembers the first."""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from torchprof_hooks.kernel.reference.span_log import Times
from torchprof_hooks.profiles.step_times import (
    BUCKETS_PER_OCTAVE,
    LEAST_STEPS,
    Bucket,
    StepTimes,
    bucket_of,
)

if TYPE_CHECKING:  # needed when all is over
    from torchprof_hooks.profiles.step_history import StepHistory

#: The most stretches of steps, and numbers of each: steps, total, longest.
_STRETCHES: Final = 512
_NUMBERS: Final = 3
#: Of so many of the last steps, each one's duration is kept.
_LATEST: Final = 128


class FirstReading(NamedTuple):
    """All sums of a tracker at the end of the start of a run: when the first training
    step had ended, or the first evaluation call of a program that does not train.
    Observers keep their own.

    wall_ns: for how long it had been measured.
    counted: the step, and evaluation calls before it.
    """

    times: Times
    wall_ns: int
    counted: StepCounter


class _Buckets:
    """Counts steps by how long something took in them; another thread may read."""

    def __init__(self) -> None:
        # By octave, of each bucket in it: steps, and their nanoseconds.
        self._octaves: defaultdict[int, array[int]] = defaultdict(
            partial(array, "q", [0, 0] * BUCKETS_PER_OCTAVE)
        )

    def add(self, duration_ns: int, steps: int) -> None:
        """Add steps that took `duration_ns` together."""
        octave, place = divmod(bucket_of(duration_ns // steps), BUCKETS_PER_OCTAVE)
        buckets = self._octaves[octave]
        buckets[2 * place] += steps
        buckets[2 * place + 1] += duration_ns

    def copy(self) -> _Buckets:
        found = _Buckets()
        for octave, numbers in list(self._octaves.items()):
            found._octaves[octave] = numbers[:]
        return found

    def __iter__(self) -> Iterator[Bucket]:
        for octave, numbers in sorted(self._octaves.items()):
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            for place, (steps, total_ns) in enumerate(pairs):
                if steps:
                    number = octave * BUCKETS_PER_OCTAVE + place
                    yield Bucket(number, steps, total_ns)


class StepCounter:
    """Counts what `StepTimes` reports.

    after_backward_ns: time outside of all calls, between a backward pass and the next
        forward, in steps without an optimizer of torch's: most likely the time of
        another optimizer.
    after_last_ns: time outside of all calls after the last step and evaluation call: of
        saving, plots and the like. 0 if it is no longer than a step but the first is on
        average, as so much may come between two of them, too; and if there are too few
        to know.
    steps, steps_ns: of all training steps.
    latest_ns: of each of the last steps but the first; who reads them may clear them.
    slow_ns: a step that takes longer may be a slow one, as far as is known now.
    """

    def __init__(self) -> None:
        self.after_backward_ns = self.after_last_ns = 0
        self.steps = self.steps_ns = 0
        self.first_steps = self.first_ns = 0
        self.evaluations = self.evaluation_ns = 0
        self.first_evaluations = self.first_evaluation_ns = 0
        self._later = _Buckets()
        self._own: _Buckets | None = None  # without waiting; None: none has waited
        self.latest_ns: deque[int] = deque(maxlen=_LATEST)
        self.slow_ns = 0.0
        self._look_at = 1 + LEAST_STEPS  # steps: to find it then
        self._over_time = array("q", bytes(8 * _NUMBERS * _STRETCHES))
        self._at, self._stretch_steps = 0, 1  # the open stretch, and how long it gets

    def count(self, duration_ns: int, steps: int = 1, *, is_first: bool) -> None:
        """Count training steps that took `duration_ns` together, as if each was equally
        long. The first step is kept apart only if it is counted alone."""
        self.steps += steps
        self.steps_ns += duration_ns
        if is_first and steps == 1:
            self.first_steps += steps
            self.first_ns += duration_ns
            return
        self._later.add(duration_ns, steps)
        self.latest_ns.append(duration_ns // steps)
        over_time, at = self._over_time, self._at
        over_time[at] += steps
        over_time[at + 1] += duration_ns
        if duration_ns > over_time[at + 2] * steps:
            over_time[at + 2] = duration_ns // steps
        if over_time[at] >= self._stretch_steps:
            # The handler of a signal that trains finds room at any moment.
            if at + _NUMBERS == _NUMBERS * _STRETCHES:
                self._join_stretches()
            else:
                self._at = at + _NUMBERS
        if self.steps >= self._look_at:  # seldom, as it takes some time
            self._look_at = self.steps + max(LEAST_STEPS, self.steps // 8)
            self.slow_ns = StepTimes(later=tuple(self._later)).slow_ns

    def _join_stretches(self) -> None:
        """Make room: join neighbours, two by two."""
        old, room = self._over_time, _NUMBERS * _STRETCHES
        found = array("q", bytes(8 * room))
        for at in range(0, room, 2 * _NUMBERS):
            steps, total_ns, longest_ns, *next_ = old[at : at + 2 * _NUMBERS]
            found[at // 2] = steps + next_[0]
            found[at // 2 + 1] = total_ns + next_[1]
            found[at // 2 + 2] = max(longest_ns, next_[2])
        # All at once: the handler of a signal may count steps, too.
        self._over_time, self._at, self._stretch_steps = (
            found,
            room // 2,
            2 * self._stretch_steps,
        )

    def history(self) -> StepHistory:
        """The steps but the first, over time; another thread may count meanwhile."""
        from torchprof_hooks.profiles.step_history import StepHistory

        over_time, at = self._over_time, self._at
        end = at + _NUMBERS if over_time[at] else at
        steps, total_ns, longest_ns = (
            tuple(over_time[n:end:_NUMBERS]) for n in range(_NUMBERS)
        )
        return StepHistory(self.first_steps + 1, steps, total_ns, longest_ns)

    def waited(self, waited_ns: int, duration_ns: int, steps: int = 1) -> None:
        """Count how long the steps that took `duration_ns` together communicated, or
        waited for others, before they are counted as steps."""
        if waited_ns or self._own:  # else, as usual in one process
            self._own = self._own_until_now()
            self._own.add(max(duration_ns - waited_ns, 0), steps)

    def _own_until_now(self) -> _Buckets:
        """What steps took without waiting: all of it, if none has waited."""
        if self._own:
            return self._own
        found = _Buckets()
        if self.first_steps:
            found.add(self.first_ns, self.first_steps)
        for bucket in self._later:
            found.add(bucket.total_ns, bucket.steps)
        return found

    def evaluation(
        self, duration_ns: int, calls: int = 1, *, is_first: bool = False
    ) -> None:
        """Count evaluation calls that took `duration_ns` together.

        calls: 0 goes on with the last one.
        is_first: whether it is that with which a run begins.
        """
        self.evaluations += calls
        self.evaluation_ns += duration_ns
        if is_first:
            self.first_evaluations += calls
            self.first_evaluation_ns += duration_ns

    def copy(self) -> StepCounter:
        """What was counted until now; another thread may count meanwhile."""
        found = StepCounter()
        vars(found).update(vars(self))
        found._later, found._over_time = self._later.copy(), self._over_time[:]
        found._own = self._own and self._own.copy()
        return found

    def times(self) -> StepTimes:
        """All so far; another thread may count meanwhile."""
        return StepTimes(
            self.first_steps,
            self.first_ns,
            tuple(self._later),
            self.evaluations,
            self.evaluation_ns,
            tuple(self._own or ()),
            self.first_evaluations,
            self.first_evaluation_ns,
        )
