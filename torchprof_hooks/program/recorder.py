"""Measures a program, and prints its report at the end."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from torchprof_hooks.files.collector import without_collections
from torchprof_hooks.hooks.measuring import (
    Settings,
    make_steps,
    new_tracer,
    trace_between,
)
from torchprof_hooks.instruments import facts_of_program
from torchprof_hooks.kernel.subscriptions import FirstCallSubscription
from torchprof_hooks.kernel.thread_steps import ThreadSteps
from torchprof_hooks.kernel.torch_names.distributed import mesh_coordinates
from torchprof_hooks.measure.origin import Origin
from torchprof_hooks.measure.signals import Sigterm, interrupted_exit
from torchprof_hooks.profiles.program import Program
from torchprof_hooks.program import ending
from torchprof_hooks.program.flags import Flags
from torchprof_hooks.program.handover import BEGAN_NS, print_warning

if TYPE_CHECKING:  # imported when they are needed, as every program would wait
    from torchprof_hooks.profiles.data import ProfileData


class Recorder:
    """Measures one thread until the program ends: the thread that starts the recorder;
    or another one, if that calls a model before the first thread calls any module.

    is_bound: whether to measure the thread that starts it in any case.
    is_child: whether a measured program has started this one: then the recorder prints
        and saves nothing, unless this process is a rank.
    """

    def __init__(
        self, flags: Flags, *, is_bound: bool = True, is_child: bool = False
    ) -> None:
        self._flags = flags
        self._is_child = is_child
        self._pid = os.getpid()
        self._is_bound = is_bound
        self._thread = ""  # name of the measured thread, if it is another one
        self._steps = self._new_steps()
        self._tracer = new_tracer(flags.device_idle)
        self._compiled_before = ending.compilation_so_far()
        flush_secs = flags.flush_secs if flags.save else 0
        self._origin = Origin(flush_secs, mesh_coordinates)
        self._outputs = ending.Outputs(flags, self._origin)
        self._is_reported = False
        self._sigterm = Sigterm(self._is_due, self.report)
        self._began_ns = self._ended_ns = 0  # measuring, and the program
        self._report_ns = 0
        self._ours_ns = 0  # how much our code has taken before that

    def start(self, ours_ns: int) -> None:
        """Begin to measure; and print the report when the program ends.

        ours_ns: how much our code has taken until now.
        """
        called_ns = time.perf_counter_ns()
        self._start()
        self._began_ns = time.perf_counter_ns()
        self._ours_ns = ours_ns + self._began_ns - called_ns

    def _start(self) -> None:
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.report)
        interrupted_exit.registered()
        self._sigterm.install()
        if self._is_bound:
            self._steps.start()
            return
        # A thread that only imports torch may never call a module.
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            self._steps.start()
        self._first_call = FirstCallSubscription(self._go_on_here, is_main)
        self._first_call.open()

    def _forked(self) -> None:
        """In a fork, which has our hooks, have `_at_step` stop measuring soon."""
        self._steps.ends_each_step = True

    def _go_on_here(self) -> None:
        """Measure the running thread instead, which is about to call a model."""
        try:
            self._sigterm.install()
            self._thread = threading.current_thread().name
            self._steps = self._new_steps()
            self._steps.start()
        except Exception as error:  # the program goes on, whatever it is
            print_warning(f"torchprof_hooks: cannot measure: {error!r}")

    def _new_steps(self) -> ThreadSteps:
        flags = self._flags
        steps = make_steps(
            Settings(
                functions=flags.time_thunks,
                memory=flags.profile_memory,
                steps=flags.steps,
                every=flags.every,
            )
        )
        steps.at_step = self._at_step
        return steps

    def report(self) -> None:
        """Print the report, once, and not in a fork of the program. Signals wait for
        it: SIGTERM, which comes if other ranks fail, would destroy the measurements;
        and Ctrl-C is meant for the program, which has ended."""
        if not self._is_due():
            return
        self._is_reported = True
        if self._is_left_out():
            return
        self._ended_ns = time.perf_counter_ns()
        with interrupted_exit.uninterrupted() as delay:
            self._make_report(lambda: delay.has_delayed(signal.SIGINT))
            if delay.has_delayed(signal.SIGTERM):
                ending.flush_output()

    def _is_due(self) -> bool:
        return not self._is_reported and os.getpid() == self._pid

    def _make_report(self, is_hurried: Callable[[], bool]) -> None:
        try:
            with without_collections():
                self._outputs.write(self._finish(), self._with_end, is_hurried)
        except Exception as error:  # it must not change how the program ends
            print_warning(f"torchprof_hooks: no report: {error!r}")

    def _at_step(self, steps: int) -> bool:
        """Called between two steps. If this fails, the program goes on without it.
        Returns whether the next step is traced."""
        try:
            return self._write_and_trace(steps)
        except Exception as error:
            self._steps.at_step = None
            print_warning(f"torchprof_hooks: {error!r}")
            return False

    def _write_and_trace(self, steps: int) -> bool:
        """Write the file if that is due, and begin or end a trace. In a fork, stop
        measuring."""
        if os.getpid() != self._pid:  # a fork, with our hooks and all numbers so far
            self._steps.stop()
            return False
        if self._tracer is not None:
            self._tracer.end(steps)  # what follows is not its time
        if not self._is_left_out():
            now_ns = time.perf_counter_ns()
            self._outputs.flush_if_due(lambda: self._until(now_ns))
        return self._tracer is not None and trace_between(self._tracer, self._steps)

    def _is_left_out(self) -> bool:
        """Whether this process is a child but no rank, so that its profile is of no
        use."""
        return self._origin.look().world_size == 1 and self._is_child

    def _until(self, end_ns: int) -> ProfileData:
        """The profile of the program until `end_ns`. Not until now: making it imports
        modules and counts operations, which is not the program's time."""
        from torchprof_hooks.hooks.results import checked_rates

        found, flags = self._steps.profile(end_ns), self._flags
        thread = f", in thread {self._thread}" if self._thread else ""
        program = Program(
            message=self._origin.command + thread,
            program_ns=end_ns - BEGAN_NS,
            compilation=ending.compilation_since(self._compiled_before),
            facts=facts_of_program(self._steps.tracker.observers),
            ended_by=ending.ended_by(self._steps.tracker.tree.names.get),
        )
        before_ns = self._began_ns - BEGAN_NS - self._ours_ns
        signed = replace(
            found.with_time_before(max(before_ns, 0)),
            program=program,
            overhead_ns=found.overhead_ns + self._ours_ns,
            provenance=(self._origin.provenance(False),),
        )
        # Without a peak by a flag, it is that of the device's data sheet.
        peak_flops, items = flags.peak_flops or None, flags.items_per_step
        return checked_rates(peak_flops, items, functions=True).added(signed)

    def _finish(self) -> ProfileData:
        self._steps.end(self._ended_ns)
        program = self._until(self._ended_ns)
        if self._tracer is None:
            return program
        self._tracer.drop()
        return self._tracer.added_to(program)

    def _with_end(self, program: ProfileData) -> ProfileData:
        """The program's profile, with the time that the report had taken at the first
        call of this: so the report and the file have the same."""
        assert program.program is not None
        if not self._report_ns:
            self._report_ns = time.perf_counter_ns() - self._ended_ns
        report_ns = self._report_ns
        facts = program.program
        facts = replace(facts, program_ns=facts.program_ns + report_ns)
        overhead_ns = program.overhead_ns + report_ns
        return replace(program, program=facts, overhead_ns=overhead_ns)
