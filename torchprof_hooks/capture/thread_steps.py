"""Measures one thread in whole training steps: all of them, or as a budget allows."""

from __future__ import annotations

from _thread import get_ident
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import torch

from torchprof_hooks.capture.attach.attachments import attachments, held_weakly
from torchprof_hooks.capture.attach.compiling import compile_shield
from torchprof_hooks.capture.attach.garbage import garbage_callback
from torchprof_hooks.capture.attach.interception import Subscription
from torchprof_hooks.capture.attach.optimizer_steps import optimizer_hooks
from torchprof_hooks.capture.duty import Block, Duty, Kind, Plan
from torchprof_hooks.capture.program_facts import read_optimizer, together
from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.record.step_counter import FirstReading, StepCounter
from torchprof_hooks.capture.steps import StepDetector
from torchprof_hooks.capture.torch_names.autograd import next_sequence_number
from torchprof_hooks.capture.tracking.make_tracker import new_tracker
from torchprof_hooks.capture.tracking.meters.device import DeviceMeter
from torchprof_hooks.capture.tracking.meters.meters import memory_sums, meters_of
from torchprof_hooks.capture.tracking.subscriptions import (
    TrackerSubscription,
    hide_modules,
    show_modules,
)
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.profiles.measured_steps import MeasuredSteps
from torchprof_hooks.profiles.optimizers import OptimizerFacts

if TYPE_CHECKING:  # it takes long to import, and is needed when all is over
    from torchprof_hooks.profiles.data import ProfileData
    from torchprof_hooks.profiles.program import ProgramFacts

#: Makes a tracker for the running thread; also returns why it does not measure memory,
#: if it should.
MakeTracker = Callable[[ModuleNames], tuple[Tracker, str]]

#: Before the first training step, at most so many evaluation calls, for at most so
#: long, are measured as a part of the start. Reinforcement learning plays thousands of
#: games before it learns.
MOST_EVALUATIONS: Final = 64
LONGEST_START_NS: Final = 1_000_000_000


class _Measured:
    """What one tracker measures: blocks of one kind.

    steps: how many steps and evaluation calls have ended in them.
    wall_ns: the time of the blocks, with that after the last step.
    """

    def __init__(self, kind: Kind, tracker: Tracker, no_memory: str = "") -> None:
        self.kind = kind
        self.tracker = tracker
        self.no_memory = no_memory
        self.subscription = TrackerSubscription(tracker, optimizers=False)
        self.steps = self.wall_ns = 0


class ThreadSteps:
    """Measures one thread from `start` to `stop`, and counts its steps.

    duty: says which steps are measured; None: all, by one tracker.
    steps: how many steps and evaluation calls have ended; counted with a duty only.
    at_step: called between two steps whenever a block ends, with that number; returns
        whether the next step is disturbed, and is to be kept apart. It may call `stop`.
    ends_each_step: whether, for now, each step is a block of its own.
    """

    def __init__(self, make: MakeTracker, *, duty: Duty | None = None) -> None:
        self._make = make
        self._duty = duty
        self._thread = get_ident()
        self.steps = 0
        self.at_step: Callable[[int], bool | None] | None = None
        self.ends_each_step = False
        on_first = held_weakly(self._first_step_ended)
        ended = self._stamped_step_ended if duty is None else self._step_ended
        self._detector = StepDetector(held_weakly(ended), on_first)
        self._optimizers: dict[int, OptimizerFacts] = {}  # by their ids
        self._detects_anomalies = False
        self._shows = Subscription()  # keeps interception in place between blocks
        self._plan: Plan | None = None  # of the block; None: the start
        self._spent_before_ns = 0.0  # on earlier profiles
        self._spans_before = self._nodes_before = 0  # the block
        self._begin_profile()

    def _begin_profile(self) -> None:
        self._names = ModuleNames()
        self._counter = StepCounter()
        self._by_kind: dict[Kind, _Measured] = {}
        kind = Kind.ON if self._plan is None else self._plan.kind
        self._initial = self._open = self._measured(kind)
        self._detector.follow(self._open.tracker, self._counter)
        self._first: FirstReading | None = None
        self._began_ns = 0  # what comes after is not booked yet; 0: not running
        self._aside_ns = 0  # ours, between steps
        self._traced_ns = self._traced = 0
        self._begin_block()

    @property
    def tracker(self) -> Tracker:
        """The one that is shown the steps now."""
        return self._open.tracker

    def renew(self) -> None:
        """After `stop`: begin another profile, of the steps that come. It keeps what it
        has learned of the program and of costs; the block goes on."""
        self._detector.renew()
        if self._duty is not None:
            self._spent_before_ns, _ = self._duty.spent()
        carried, nodes_before = self._block(), self._nodes_before
        spans = self._open.tracker.log.spans - self._spans_before
        self._begin_profile()
        self._carried, self._nodes_before = carried, nodes_before
        self._spans_before -= spans

    def start(self) -> None:
        """Begin; or go on after `stop`."""
        attachments.attach(optimizer_hooks, self)
        if self._duty is not None:
            show_modules(self._shows)
        self._show(self._open)
        self._detector.start()
        self._began_ns = perf_counter_ns()
        attachments.attach(garbage_callback, self)  # only now is its time measured

    def stop(self, by_exception: bool = False) -> None:
        """End, maybe in the middle of a step."""
        self._detector.stop()
        attachments.detach(garbage_callback, self)
        attachments.detach(optimizer_hooks, self)
        self._hide(by_exception)
        hide_modules(self._shows)
        self._book_time()
        self._began_ns = 0

    def hurry(self) -> None:
        """Have the block end with the current step."""
        if self._plan is not None:
            self._plan = self._plan._replace(steps=0, lasts_ns=0)
        self._detector.quiet_until_ns = 0

    def close_left_calls(self) -> None:
        """Close open calls, as the program is ending: as of the moment when they were
        last known to run."""
        if self._open.tracker.works_here():
            self._open.tracker.abort_all(by_exception=False)

    # Reading

    def facts(self) -> ProgramFacts:
        """What is known of the program besides its times."""
        from torchprof_hooks.profiles.program import ProgramFacts

        return ProgramFacts(
            together(self._optimizers.values()),
            self._detects_anomalies or torch.is_anomaly_enabled(),
        )

    def profile(self, end_ns: int | None = None) -> ProfileData:
        """Everything measured so far. If only some steps were measured, the rows inside
        of a part of the program are scaled to the whole time of that part.

        end_ns: when the time of the thread ended, if that is not now.
        """
        counted, running = self._detector.counted(end_ns), self._block()
        found = self._profile(counted, running, end_ns)
        history = counted.history()
        if history.stretch_steps:
            from torchprof_hooks.capture.slow_steps import slow_steps
            from torchprof_hooks.profiles.step_history import slowest_of

            times = counted.times()
            every = [each.tracker for each in list(self._by_kind.values())]
            slow = (step for each in every for step in slow_steps(each, times))
            history = replace(history, slowest=slowest_of(slow))
        return replace(found, step_history=history)

    def _profile(
        self, counted: StepCounter, running: Block, end_ns: int | None
    ) -> ProfileData:
        if self._duty is None:
            return self._snapshot(self._initial, counted, end_ns)
        from torchprof_hooks.profiles.data import ProfileData
        from torchprof_hooks.profiles.scaling import of_all_steps

        after_ns, counted.after_backward_ns = counted.after_backward_ns, 0
        seen = {
            kind: self._snapshot(each, counted, end_ns)
            for kind, each in list(self._by_kind.items())
        }
        off, on = (seen.get(kind, ProfileData()) for kind in (Kind.OFF, Kind.ON))
        steps = self._measured_steps(running)
        found = of_all_steps(
            off,
            on,
            steps=steps,
            aside_ns=self._aside_ns,
            after_backward_ns=after_ns,
        )
        if self._duty.measures_all:
            traced = MeasuredSteps(traced=self._traced, traced_ns=self._traced_ns)
            overhead_ns = found.overhead_ns + self._aside_ns
            return replace(found, measured=traced, overhead_ns=overhead_ns)
        spent_ns, error_ns = self._duty.spent()
        spent_ns += self._with_cost(running).counted_ns - self._spent_before_ns
        return replace(
            found,
            measured=steps,
            overhead_ns=round(spent_ns) + self._aside_ns,
            overhead_error_ns=round(error_ns),
        )

    def _snapshot(
        self,
        measured: _Measured,
        counted: StepCounter,
        end_ns: int | None,
    ) -> ProfileData:
        from torchprof_hooks.capture.snapshot import take_snapshot

        is_initial = measured is self._initial
        return take_snapshot(
            measured.tracker,
            lambda: measured.wall_ns + self._age_ns(measured, end_ns),
            measured.no_memory,
            counted if is_initial else StepCounter(),
            first=self._first if is_initial else None,
            end_ns=end_ns if measured is self._open else None,
        )

    def _measured_steps(self, running: Block) -> MeasuredSteps:
        by_kind = list(self._by_kind.items())  # once: another thread may read
        steps = Counter({kind: each.steps for kind, each in by_kind})
        steps[running.kind] += running.steps - self._carried.steps
        on = steps[Kind.ON]
        return MeasuredSteps(on + steps[Kind.OFF], on, self._traced, self._traced_ns)

    # What optimizers tell

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._open.tracker.optimizer_pre(optimizer, args, kwargs)

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        tracker = self._open.tracker
        tracker.optimizer_post(optimizer, args, kwargs)
        if not tracker.works_here():
            return
        began_ns, around = perf_counter_ns(), tracker.site
        detector = self._detector
        if not detector.rounds.knows(optimizer):
            self._optimizers[id(optimizer)] = read_optimizer(optimizer)
        self._detects_anomalies |= torch.is_anomaly_enabled()
        if not around.is_loading:
            is_inside_call = around is not tracker.outside
            if is_inside_call and tracker.is_in_optimizer():
                detector.rounds.inner_stepped(optimizer)
            else:
                ended_ns = tracker.last_booked_ns() or perf_counter_ns()
                detector.optimizer_stepped(optimizer, is_inside_call, ended_ns)
        around.reading_ns += perf_counter_ns() - began_ns

    def begin_closure(self) -> Callable[[], object]:
        return self._open.tracker.begin_closure()

    def _first_step_ended(self) -> None:
        """Read all sums: later ones do not show the first step by itself."""
        if self._open is not self._initial or self._plan is not None:
            return
        tracker = self._open.tracker
        for meter in meters_of(tracker, DeviceMeter):
            meter.mark(tracker.calls())
        self._first = FirstReading(
            tracker.times(),
            memory_sums(tracker),
            self._open.wall_ns + self._age_ns(self._open),
            self._detector.counted(),
        )

    # Blocks of steps

    def _stamped_step_ended(self) -> None:
        """Between two steps: go on with or without stamps of the device."""
        tracker = self._open.tracker
        for meter in meters_of(tracker, DeviceMeter):
            meter.stamped_steps.step_ended(tracker.calls)

    def _step_ended(self) -> None:
        """Between two steps: go on as the duty says."""
        assert self._duty is not None
        self._stamped_step_ended()
        block = self._block()
        # Not if torch.compile would compile again because hooks come or go.
        if not self._is_over(block) or compile_shield.has_missed:
            return
        self._book_time()
        is_start = self._plan is None
        ended = block if self._duty.measures_all else self._with_cost(block)
        if is_start and self._first is None:
            self._first_step_ended()
        self._open.steps += block.steps - self._carried.steps
        self.steps += block.steps
        if ended.kind is Kind.TRACED:
            self._traced += block.steps
            self._traced_ns += self._open.wall_ns
            del self._by_kind[Kind.TRACED]
        plan = self._duty.begin(ended) if is_start else self._duty.next(ended)
        if self.at_step is not None:
            is_disturbed = self.at_step(self.steps)
            if not self._began_ns:
                return  # `at_step` has called `stop`
            if is_disturbed:
                plan = Plan(Kind.TRACED, steps=1, lasts_ns=0)
        self._go_on(plan)

    def _is_over(self, block: Block) -> bool:
        if self._plan is not None:
            return self.ends_each_step or self._plan.is_over(block)
        is_long = (
            block.evaluated >= MOST_EVALUATIONS or block.took_ns >= LONGEST_START_NS
        )
        return block.trained > 0 or is_long or not self._detector.expects_first_step()

    def _go_on(self, plan: Plan) -> None:
        """Begin the next block. The time since the last one is ours, and is taken out
        of all other times: also of `reading_ns` of the site that told of the end of the
        step, as it has measured that time, too."""
        self._plan, told = plan, self._open.tracker.site
        changes = plan.kind is not self._open.kind or plan.kind is Kind.TRACED
        if changes:
            self._hide()
            self._open = self._measured(plan.kind)
            self._show(self._open)
            garbage_callback.users_changed()
            is_traced = plan.kind is Kind.TRACED
            counter = StepCounter() if is_traced else self._counter
            self._detector.follow(self._open.tracker, counter)
        passed_ns = self._age_ns(self._open)
        self._aside_ns += passed_ns
        self._began_ns += passed_ns
        told.reading_ns -= passed_ns
        self._detector.leave_out(passed_ns)
        self._begin_block()
        # At each step, it is chosen whether a device is stamped in the next one.
        is_each_told = self.ends_each_step or meters_of(self._open.tracker, DeviceMeter)
        lasts_ns = 0 if is_each_told else round(plan.lasts_ns)
        self._detector.quiet_until_ns = self._began_ns + lasts_ns

    def _begin_block(self) -> None:
        self._carried = Block(self._open.kind)  # its part in an earlier profile
        self._before = self._detector.ended()
        self._spans_before = self._open.tracker.log.spans
        self._nodes_before = next_sequence_number()

    def _block(self) -> Block:
        """The block so far."""
        each = zip(
            self._detector.ended(), self._before, self._carried[1:5], strict=True
        )
        return Block(self._open.kind, *(now - then + more for now, then, more in each))

    def _with_cost(self, block: Block) -> Block:
        """The block with its cost, by what was counted in it."""
        from torchprof_hooks.capture.overhead import counted_ns_of_block

        spans = self._open.tracker.log.spans - self._spans_before
        nodes = 0
        if get_ident() == self._thread:  # other threads have counters of their own
            nodes = next_sequence_number() - self._nodes_before
        counted_ns = counted_ns_of_block(block, self._open.tracker, spans, nodes)
        return block._replace(counted_ns=counted_ns)

    # Time, and who is shown calls

    def _age_ns(self, measured: _Measured, end_ns: int | None = None) -> int:
        """The time that is not booked yet, if it is that of `measured`; else 0."""
        began_ns = self._began_ns  # once: another thread may read
        if not began_ns or measured is not self._open:
            return 0
        return max((end_ns or perf_counter_ns()) - began_ns, 0)

    def _book_time(self) -> None:
        passed_ns = self._age_ns(self._open)
        # Both at once: an interrupt finds the time booked or still running.
        self._open.wall_ns, self._began_ns = (
            self._open.wall_ns + passed_ns,
            self._began_ns + passed_ns,
        )

    def _measured(self, kind: Kind) -> _Measured:
        if kind not in self._by_kind:
            self._by_kind[kind] = self._new_measured(kind)
        return self._by_kind[kind]

    def _new_measured(self, kind: Kind) -> _Measured:
        if kind is Kind.ON:
            return _Measured(kind, *self._make(self._names))
        tracker = new_tracker(self._names, divides=False)
        tracker.sees_outer_alone = True
        return _Measured(kind, tracker)

    def _show(self, measured: _Measured) -> None:
        measured.tracker.on_pause = self._detector.call_ended
        measured.subscription.open()

    def _hide(self, by_exception: bool = False) -> None:
        self._open.subscription.close(by_exception)
        self._open.tracker.on_pause = None
