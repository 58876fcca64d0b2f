"""Steps and evaluation calls of a thread that have ended: they are counted, or wait
until it is known what they were."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from torchprof_hooks.kernel.step_counter import StepCounter
from torchprof_hooks.kernel.torch_names.modules import any_optimizer_made
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.step_times import LEAST_STEPS

#: After so many backward passes without any optimizer's step, none is expected.
PATIENCE: Final = 256
#: More than so many times the calls without a graph of the step before are evaluations.
MANY: Final = 4


class StepClock:
    """The clock of steps: `perf_counter_ns`, less what is no time of the program's.

    left_out_ns: so much.
    """

    def __init__(self) -> None:
        self.left_out_ns = 0
        self.is_running = False
        self._stopped_ns = 0

    def start(self) -> None:
        """Time counts from now on."""
        self.left_out_ns += perf_counter_ns() - self._stopped_ns
        self.is_running = True

    @property
    def stopped_ns(self) -> int:
        """When time has stopped to count."""
        return self._stopped_ns - self.left_out_ns

    def stop(self, now_ns: int | None = None) -> None:
        """Time does not count until the next `start`. now_ns: when it stopped."""
        if self.is_running:  # else an interrupt came before that
            self._stopped_ns = now_ns or perf_counter_ns()
            self.is_running = False


class CallsWithoutGraph:
    """Calls from outside that make no graph, before the first one of a step that does:
    what may be evaluations. One is a call, with those of other modules after it that
    have no parameters (of a loss, a sampler). They are evaluations, unless there were
    some in the step before, and there are not `MANY` times as many now: then they are a
    part of the step.

    has_graph: whether the step has a call that makes a graph: no more calls come here.
    waiting_ns: how long those took that are not counted yet.
    """

    def __init__(self) -> None:
        self.has_graph = False
        self.waiting_ns = 0
        self._first: Site | None = None  # call of the last evaluation
        self._count = self._apart = 0  # in this step; those that are evaluations
        self._usual = 0  # in the step before

    @property
    def waiting(self) -> int:
        """How many evaluations are not counted as such."""
        return self._count - self._apart

    def add(self, site: Site, duration_ns: int) -> bool:
        """One has ended at `site`. Returns whether those that wait are evaluations."""
        first = self._first
        if first is None or site is first or site.is_model():
            self._first = site
            self._count += 1
        self.waiting_ns += duration_ns
        return self._count > MANY * self._usual

    def count(self) -> None:
        """Those that wait are counted as evaluations now."""
        self._apart, self.waiting_ns = self._count, 0

    def step_ended(self, has_gone_on: bool) -> None:
        """The step is over. has_gone_on: it seemed to be so once before."""
        if self._count or not has_gone_on:
            self._usual, self._count, self._apart = self._count, 0, 0
        self.waiting_ns = 0
        self.forget()

    def forget(self) -> None:
        """The next call begins an evaluation."""
        self._first = None


class PassesAsSteps:
    """Backward passes, each of which is a step, if no optimizer of torch's steps. Most
    likely, another one steps between a pass and the next call.

    ends_ns: of passes that wait, as an optimizer may still step.
    after_ns: what came after passes, and is not counted yet.
    entered_ns: the tracker's at the end of the last pass.
    """

    def __init__(self) -> None:
        self.ends_ns: list[int] = []
        self.after_ns = self.entered_ns = 0
        self.last_ns: int | None = None  # the last one's end, if no call came since
        self._are_all = False

    def add(self, end_ns: int) -> bool:
        """One has ended. Returns whether those that wait are steps."""
        self.ends_ns.append(end_ns)
        self.last_ns = end_ns
        self._are_all = (
            self._are_all or len(self.ends_ns) >= PATIENCE or not any_optimizer_made()
        )
        return self._are_all

    def called(self, start_ns: int, end_ns: int, entered_ns: int) -> None:
        """The first call after a pass is over. entered_ns: the tracker's now."""
        others_ns = entered_ns - self.entered_ns - (end_ns - start_ns)
        if self.last_ns is not None:
            self.after_ns += max(start_ns - self.last_ns - others_ns, 0)
            self.last_ns = None

    def drop(self) -> None:
        """Those that wait are parts of a step."""
        if self.ends_ns:
            self.ends_ns.clear()
            self.after_ns, self.last_ns = 0, None


class EndedSteps:
    """Counts what has ended in a thread. A step that seems to have ended waits until
    the next one does: it may go on, if another optimizer steps in it. So do calls that
    may be evaluations, or a part of the next step, and passes that may be steps.

    on_first: called when the first training step has ended; again, if it goes on. In
        programs that make no optimizer, the first evaluation call counts, too.
    clock: moments are by this.
    counter: where steps are counted (see `follow`). counted: so many are, in all.
    tracker: what sees the calls.
    ended_ns: when the step that waits has ended; None: none waits.
    """

    def __init__(self, on_first: Callable[[], object]) -> None:
        self._on_first = on_first
        self.clock = StepClock()
        self.calls = CallsWithoutGraph()
        self.passes = PassesAsSteps()
        self.counter = StepCounter()
        self.tracker: Tracker | None = None
        self.counted = self._evaluations = 0
        self._began_ns = 0  # the running step
        self._between_ns = self._entered_ns = 0  # see `between`
        self.ended_ns: int | None = None
        self._waited_ns = self._waited_by_end_ns = 0

    def follow(self, tracker: Tracker | None, counter: StepCounter) -> None:
        """From now on, count in `counter`, and calls are those that `tracker` sees;
        None: nothing but optimizers' steps and passes are told. Between two steps."""
        self.count_ended()
        self._count_after_passes()
        self.tracker, self.counter = tracker, counter
        self.calls.forget()
        if tracker is not None:
            self.passes.entered_ns = self._entered_ns = tracker.entered_ns
            self._waited_ns = self._waited_by_end_ns = tracker.waited_ns
        self.passes.last_ns = None

    @property
    def steps(self) -> int:
        """How many training steps have ended."""
        return self.counted + (self.ended_ns is not None)

    @property
    def all(self) -> int:
        """How many training steps and evaluation calls have ended."""
        return self.steps + self._evaluations

    def read(self) -> StepCounter:
        """The steps in `counter`, and what has ended and is not in it yet."""
        found, began_ns, ended_ns = self.counter.copy(), self._began_ns, self.ended_ns
        found.after_backward_ns += self.passes.after_ns
        ends_ns: list[int] = []
        if ended_ns is not None:
            waited_ns = self._waited_by_end_ns - self._waited_ns
            found.waited(waited_ns, ended_ns - began_ns)
            ends_ns = [ended_ns]
        elif not self.clock.is_running:  # no optimizer steps any more
            ends_ns = [*self.passes.ends_ns]
        for steps, end_ns in enumerate(ends_ns, self.counted):
            found.count(end_ns - began_ns, is_first=not steps)
            began_ns = end_ns
        found.evaluation(self.calls.waiting_ns, self.calls.waiting)
        found.after_last_ns = self._after_last_ns(found)
        return found

    def _after_last_ns(self, counter: StepCounter) -> int:
        """See `StepCounter.after_last_ns`."""
        is_known = counter.steps >= LEAST_STEPS  # what is usual
        if self.tracker is None or self.clock.is_running or not is_known:
            return 0
        between_ns, entered_ns = self._between_ns, self._entered_ns
        last_ns = self.passes.ends_ns[-1] if self.passes.ends_ns else 0
        if last_ns > between_ns:  # no optimizer has stepped: these were steps
            between_ns, entered_ns = last_ns, self.passes.entered_ns
        others_ns = self.tracker.entered_ns - entered_ns
        after_ns = self.clock.stopped_ns - between_ns - others_ns
        later_ns = counter.steps_ns - counter.first_ns  # the first step is no usual one
        later_steps = counter.steps - counter.first_steps
        return after_ns if after_ns * later_steps > later_ns else 0

    def between(self, now_ns: int) -> None:
        """A step has ended, or evaluation calls have, and no call is open."""
        self._between_ns = now_ns
        if self.tracker is not None:
            self._entered_ns = self.tracker.entered_ns

    # What has ended

    def end(self, now_ns: int, has_gone_on: bool = False) -> None:
        """The running step ends here, as far as it is known. has_gone_on: it seemed to
        have ended before."""
        self.ended_ns = now_ns
        self.calls.has_graph = False
        if self.tracker is not None:
            self._waited_by_end_ns = self.tracker.waited_ns
            self.calls.step_ended(has_gone_on)
        if not self.counted:
            self._on_first()

    def count_ended(self) -> None:
        """The step that waits, if any, has really ended."""
        if self.ended_ns is None:
            return
        waited_ns = self._waited_by_end_ns - self._waited_ns
        self._waited_ns = self._waited_by_end_ns
        ended_ns, self.ended_ns = self.ended_ns, None
        duration_ns = ended_ns - self._began_ns
        self.counter.waited(waited_ns, duration_ns)
        self.counter.count(duration_ns, is_first=not self.counted)
        self.counted += 1
        self._began_ns = ended_ns

    def count_passes(self) -> None:
        """Each of the passes that wait was a step."""
        ends_ns, self.passes.ends_ns = self.passes.ends_ns, []
        for end_ns in ends_ns:
            self.end(end_ns)
            self.count_ended()
        self._count_after_passes()

    def _count_after_passes(self) -> None:
        if not self.passes.ends_ns:
            self.counter.after_backward_ns += self.passes.after_ns
            self.passes.after_ns = 0

    def called_without_graph(self, site: Site, duration_ns: int, end_ns: int) -> bool:
        """A call has ended that made no graph, in a step that has none. Returns whether
        it was of an evaluation."""
        if not self.calls.add(site, duration_ns):
            return False  # a part of the step, if one comes
        calls = self.calls.waiting
        self._evaluations += calls
        is_first = self.all == 1
        self.count_ended()
        self.counter.evaluation(self.calls.waiting_ns, calls, is_first=is_first)
        self.calls.count()
        if not self.passes.ends_ns:  # else the step has begun, most likely
            self._began_ns = end_ns
        if self.tracker is not None:  # what they have waited is in no step
            self._waited_ns = self.tracker.waited_ns
        if calls and is_first and not any_optimizer_made():
            self._on_first()
        return True
