"""Measures a program from now on, and reports when it ends."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from types import FrameType
from typing import Final

from torchprof_hooks.measure.device_clock import default_device_clock
from torchprof_hooks.profiler import Profiler, Settings
from torchprof_hooks.profiles.program import ProgramProfile
from torchprof_hooks.program.destination import rank_file, write_report
from torchprof_hooks.program.flags import Flags

_START_NS: Final = time.perf_counter_ns()


class Recorder:
    """Follows the thread that starts it, until the program ends."""

    def __init__(self, flags: Flags) -> None:
        self._flags = flags
        self._pid = os.getpid()
        self._profiler = Profiler(
            Settings(
                flags.time_thunks,
                flags.profile_memory,
                default_device_clock(),
                flags.every,
            )
        )
        self._is_reported = False

    def start(self) -> None:
        """Begin, and have the end reported."""
        atexit.register(self.report)
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)
        self._profiler.__enter__()

    def report(self) -> None:
        """Report, once, unless this is a fork of the program."""
        if self._is_reported or os.getpid() != self._pid:
            return
        self._is_reported = True
        try:
            program = self._finish()
            if program.profile.is_empty:
                print("torchprof_hooks: no module was called", file=sys.stderr)
            else:
                self._write(program)
        except Exception as error:  # the program has ended well, for all that
            print(f"torchprof_hooks: no report: {error!r}", file=sys.stderr)

    def _finish(self) -> ProgramProfile:
        now_ns = time.perf_counter_ns()
        found = self._profiler.profile
        message = " ".join(sys.argv) or "an interactive session"
        sampled = self._profiler.sampled_steps
        return ProgramProfile(message, found, now_ns - _START_NS, sampled)

    def _write(self, program: ProgramProfile) -> None:
        from torchprof_hooks.reports.program.report import program_report
        from torchprof_hooks.reports.program.totals import global_stats
        from torchprof_hooks.reports.text import render

        flags = self._flags
        if flags.save:
            program.profile.save(rank_file(flags.save))
        parts = []
        if flags.profile:
            parts.append(
                program_report(
                    program,
                    n_ops=flags.n_ops,
                    n_apply=flags.n_apply,
                    width=flags.output_line_width,
                )
            )
        if flags.debugprint:
            parts.append(render(program.profile))
        if flags.print_global_stats:
            parts.append(global_stats(program))
        write_report("\n\n".join(parts), flags.destination)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self.report()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)  # end as without us


def start(flags: Flags) -> None:
    """Begin to measure, unless the program is being measured already."""
    if not _running:
        _running.append(Recorder(flags))
        _running[0].start()


_running: Final[list[Recorder]] = []
