"""Measures a program from now on, and reports when it ends."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import Final

from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.compilation import read_compilation
from torchprof_hooks.capture.flop_count import FlopCount
from torchprof_hooks.capture.module_names import ModuleNames
from torchprof_hooks.capture.pace import Detail, Pace
from torchprof_hooks.capture.step_sampler import StepSampler
from torchprof_hooks.measure.device_clock import default_device_clock
from torchprof_hooks.profiler import Settings, make_tracker
from torchprof_hooks.profiles.compilation import CompilationSummary
from torchprof_hooks.profiles.program import ProgramProfile
from torchprof_hooks.program.beginning import BEGAN_NS
from torchprof_hooks.program.complaints import complain
from torchprof_hooks.program.destination import rank_file, write_report
from torchprof_hooks.program.flags import Flags
from torchprof_hooks.session.memory_step import MemoryStep

#: The step that is traced for the memory profile: the first that is like others, after
#: the warm-up and one in which functions are looked at.
_TRACED_STEP: Final = 2


#: How long the end may take to count floating-point operations.
_PATIENCE_S: Final = 0.2

_NOTHING: Final = (
    "torchprof_hooks: no module was called (processes that a program starts are not "
    "measured)"
)


class Recorder:
    """Follows the thread that starts it, until the program ends."""

    def __init__(self, flags: Flags) -> None:
        self._flags = flags
        self._pid = os.getpid()
        self._sampler = make_sampler(flags)
        self._sampler.at_step = self._at_step
        self._memory = MemoryStep() if flags.profile_memory else None
        self._compiled_before = _compilation_since(CompilationSummary())
        self._has_traced = False
        self._flushed_at = time.monotonic()
        self._flop_count = FlopCount(_PATIENCE_S)
        self._is_reported = False
        self._ended_ns = 0
        self.beginning_ns = 0  # what it took until `start` was done

    def start(self) -> None:
        """Begin, and have the end reported."""
        atexit.register(self.report)
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)
        self._sampler.start()

    def report(self) -> None:
        """Report, once, unless this is a fork of the program."""
        if self._is_reported or os.getpid() != self._pid:
            return
        self._is_reported = True
        self._ended_ns = time.perf_counter_ns()
        try:
            program = self._finish()
            if program.whole.is_empty and not program.whole.steps:
                complain(_NOTHING)
            else:
                self._save_at_end(program)
                self._write(program)
        except Exception as error:  # the program has ended well, for all that
            complain(f"torchprof_hooks: no report: {error!r}")

    def _at_step(self, steps: int) -> bool:
        """Between two steps: write the file; trace one. Whether the next is traced."""
        if self._flags.save:
            self._flush_if_due()
        if self._memory is None:
            return False
        self._memory.end(steps)
        is_due = steps >= _TRACED_STEP and not self._has_traced
        self._has_traced = self._has_traced or is_due
        return is_due and self._memory.begin()

    def _flush_if_due(self) -> None:
        if time.monotonic() - self._flushed_at >= self._flags.flush_secs:
            with suppress(OSError):  # the end will tell
                self._save(self._so_far(FlopCount(patience_s=0)))
            self._flushed_at = time.monotonic()

    def _save(self, program: ProgramProfile) -> None:
        from torchprof_hooks.profiles.files.program_file import save_program

        save_program(program, rank_file(self._flags.save))

    def _save_at_end(self, program: ProgramProfile) -> None:
        if not self._flags.save:
            return
        try:
            self._save(program)
        except Exception as error:  # there is still the report
            where = rank_file(self._flags.save)
            complain(f"torchprof_hooks: {where} is not saved: {error}")

    def _so_far(self, flop_count: FlopCount) -> ProgramProfile:
        now_ns = time.perf_counter_ns()
        strata = self._sampler.strata(flop_count)
        return ProgramProfile(
            message=" ".join(sys.argv) or "an interactive session",
            strata=strata,
            program_ns=now_ns - BEGAN_NS,
            overhead_ns=self._sampler.spent_ns,
            has_warm_up=not self._flags.ignore_first_call,
            compilation=_compilation_since(self._compiled_before),
            facts=self._sampler.facts(),
        )

    def _finish(self) -> ProgramProfile:
        program = self._so_far(self._flop_count)
        if self._memory is None:
            return program
        self._memory.drop()  # a step that has not ended
        replay = self._memory.replay()
        return replace(program, replay=replay, not_replayed=self._memory.reason)

    def _write(self, program: ProgramProfile) -> None:
        from torchprof_hooks.reports.program.report import Layout, program_report
        from torchprof_hooks.reports.program.totals import global_stats
        from torchprof_hooks.reports.text import render

        flags = self._flags
        parts = []
        if flags.profile:
            layout = Layout(
                n_ops=flags.n_ops,
                n_apply=flags.n_apply,
                width=flags.output_line_width,
                min_memory_size=flags.min_memory_size,
                every_pass=flags.profile_optimizer,
                with_memory=flags.profile_memory,
            )
            parts.append(program_report(program, layout))
        if flags.debugprint:
            parts.append(render(program.whole.corrected()))
        if flags.print_global_stats:
            parts.append(global_stats(program))
        report = "\n\n".join([*parts, self._closing()])
        try:
            write_report(report, flags.destination)
        except OSError as error:
            complain(f"torchprof_hooks: no file for the report: {error}")
            write_report(report, "stderr")  # it may have taken days

    def _closing(self) -> str:
        """What only the program's end can tell: no file of it says so."""
        report_ns = time.perf_counter_ns() - self._ended_ns
        lines = [
            f"Besides, it took {self.beginning_ns / 1e9:.3f}s to begin, and "
            f"{report_ns / 1e9:.3f}s to make this report"
        ]
        left_out = ", ".join(sorted(self._flop_count.left_out))
        if left_out:
            lines.append(
                f"GFLOP/s without {left_out}: to count their operations, torch would "
                "take too long (profile(functions=True) does)"
            )
        return "\n".join(lines)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        if signal.getsignal(number) != self._on_sigterm:
            return  # called by the handler that took our place: what follows is its own
        self.report()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)  # end as without us


def _compilation_since(earlier: CompilationSummary) -> CompilationSummary:
    """What torch.compile has done since. It keeps its books under private names: if
    they are not as we know them, there is nothing to tell."""
    try:
        return read_compilation().since(earlier)
    except Exception:
        return CompilationSummary()


def make_sampler(flags: Flags) -> StepSampler:
    """What measures the running thread as the flags say."""

    def make(detail: Detail, names: ModuleNames) -> tuple[BackwardTracker, str]:
        settings = Settings(
            functions=detail == Detail.FUNCTIONS,
            memory=flags.profile_memory,
            device_clock=default_device_clock(),
        )
        return make_tracker(settings, names)

    most = Detail.FUNCTIONS if flags.time_thunks else Detail.MODULES
    return StepSampler(make, Pace(flags.max_overhead, flags.every, most), most)


def start(flags: Flags, beginning_ns: int = 0) -> None:
    """Begin to measure, unless the program is being measured already.

    beginning_ns: what it has taken to come here, which the program would not have.
    """
    if not _running:
        began_ns = time.perf_counter_ns()
        recorder = Recorder(flags)
        _running.append(recorder)
        recorder.start()
        recorder.beginning_ns = beginning_ns + time.perf_counter_ns() - began_ns


_running: Final[list[Recorder]] = []
