"""Writes the outputs when a program ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from torchprof_hooks.files.own_file import OwnFile, rank_path
from torchprof_hooks.kernel.torch_names.modules import modules_left
from torchprof_hooks.measure.origin import Origin
from torchprof_hooks.program.flags import STREAMS, Flags, option
from torchprof_hooks.program.handover import print_warning

if TYPE_CHECKING:  # imported when they are needed, as every program would wait
    import torch

    from torchprof_hooks.profiles.compilation import CompilationSummary
    from torchprof_hooks.profiles.data import ProfileData

_NOTHING: Final = "torchprof_hooks: no module was called"
_LEFT_TO_RANK_0: Final = (
    "torchprof_hooks: rank {} of {} is measured, too: --save FILE keeps its report and "
    "compares the ranks, --ranks-report off prints it"
)
_NOT_CHILDREN: Final = " (processes that a program starts are not measured)"


class Outputs:
    """Writes the profile of a program, its page and its report, where the flags say.

    origin: which process of the program this is.
    """

    def __init__(self, flags: Flags, origin: Origin) -> None:
        self._flags = flags
        self._origin = origin
        self._file = OwnFile(Path(flags.save), origin.provenance, flags.flush_secs)
        self._is_saved = False
        self._flushed_at = time.monotonic()

    def flush_if_due(self, so_far: Callable[[], ProfileData]) -> None:
        """Write the file, if that is due. Called between two steps.

        so_far: makes the profile until now.
        """
        if not self._flags.save:
            return
        if time.monotonic() - self._flushed_at >= self._flags.flush_secs:
            program = so_far()
            self._file.keep_writing(lambda: program, at_once=True)
            self._flushed_at = time.monotonic()

    def write(
        self,
        program: ProfileData,
        with_end: Callable[[ProfileData], ProfileData],
        is_hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        """Write all outputs, at the end.

        with_end: adds to a profile the time that the outputs have taken so far.
        is_hurried: whether Ctrl-C was pressed: then this does not wait for other ranks.
        """
        if self._is_nothing(program):
            not_children = _NOT_CHILDREN * (not self._flags.children)
            print_warning(_NOTHING + not_children + _given_too_late())
        else:
            self._save(program)  # first, so that nothing later can lose it
            self._show(program, with_end, is_hurried)
            self._save(with_end(program))

    def _is_nothing(self, program: ProfileData) -> bool:
        """Whether the program called nothing. Of one that starts ranks, calls of
        functions count for nothing, too: imports make some, and its file would be taken
        for a run that is newer than that of the ranks."""
        if program.steps:
            return False
        if self._flags.children and self._origin.look().world_size == 1:
            kinds = {program.modules[path[-1]].kind for path, _ in program.cells}
            return "module" not in kinds
        return program.is_empty

    def _show(
        self,
        program: ProfileData,
        with_end: Callable[[ProfileData], ProfileData],
        is_hurried: Callable[[], bool],
    ) -> None:
        """Write the page; then, unless rank 0 does, the report. Rank 0 prints that of
        all ranks first."""
        is_left_to_rank_0 = self._is_left_to_rank_0()
        self._write_page(program)
        if not is_left_to_rank_0:
            report = exit_report(program, self._flags, with_end)
            self._write_report(self._of_ranks(is_hurried) + report)

    def _is_left_to_rank_0(self) -> bool:
        """Whether rank 0 alone prints a report: those of all would be in its way. If
        that of this rank is in no file, print how to get it."""
        place, flags = self._origin.look(), self._flags
        if not (place.rank and flags.ranks_report and flags.destination in STREAMS):
            return False
        if not flags.save:
            print_warning(_LEFT_TO_RANK_0.format(*place))
        return self._is_saved or not flags.save

    def _save(self, program: ProfileData) -> None:
        if not self._flags.save:
            return
        try:
            self._file.finish(program)
            self._is_saved = True
        except Exception as error:  # there is still the report
            print_warning(f"torchprof_hooks: {self._file.path} is not saved: {error}")

    def _write_page(self, program: ProfileData) -> None:
        if self._flags.html:
            from torchprof_hooks.documents.report import page

            self._write_file(lambda: page(program), self._flags.html, "page")

    def _write_report(self, report: str) -> None:
        where = self._flags.destination
        if where in STREAMS:
            print_report(report, where)
        elif not self._write_file(lambda: report + "\n", where, "report"):
            print_report(report, "stderr")  # the program may have run for days

    def _write_file(self, make: Callable[[], str], where: str, what: str) -> bool:
        """Write what `make` returns to a file, one for each rank of a distributed
        program. Returns whether that was possible; if not, prints why."""
        from torchprof_hooks.files.writing import write_text

        path = rank_path(Path(where), self._origin.provenance(True))
        try:
            write_text(make(), path)
        except Exception as error:  # there is still the report
            reason = getattr(error, "strerror", None) or error
            print_warning(f"torchprof_hooks: no file for the {what}: {path}: {reason}")
            return False
        return True

    def _of_ranks(self, is_hurried: Callable[[], bool]) -> str:
        """The report of ranks, to go above the report of rank 0; "" for other ranks."""
        if not (self._flags.save and self._flags.ranks_report):
            return ""
        from torchprof_hooks.documents.ranks_at_exit import final_report

        provenance = self._origin.provenance(True)
        try:
            found = final_report(
                Path(self._flags.save), provenance, is_hurried=is_hurried
            )
        except Exception as error:  # there is still the report
            found = f"torchprof_hooks: ranks are not compared: {error}"
        return f"{found}\n\n" if found else ""


def _given_too_late() -> str:
    """Says which arguments of the program would be options of ours before it."""
    ours = {option(flag.name) for flag in fields(Flags)}
    late = [a for a in sys.orig_argv[1:] if a.partition("=")[0] in ours]
    return f"; {' '.join(late)}: for us, write this before the script" if late else ""


def exit_report(
    program: ProfileData,
    flags: Flags,
    with_end: Callable[[ProfileData], ProfileData],
) -> str:
    """The first screen; or, if the flags ask for them, all tables, and Theano's.

    with_end: adds to a profile the time that the report has taken so far. The screen,
        which has that time, is made last.
    """
    from torchprof_hooks.documents.build.exit_report import ExitLayout
    from torchprof_hooks.documents.render.terminal import width_of
    from torchprof_hooks.documents.report import Layout, program_text, report
    from torchprof_hooks.documents.words import OF_PROGRAMS

    tables = []
    if flags.wants_tables:
        text = program_text(
            program,
            ExitLayout(
                n_ops=flags.n_ops,
                n_apply=flags.n_apply,
                every_pass=flags.profile_optimizer,
                include_overhead=False,
            ),
            width=flags.output_line_width,
            with_memory=flags.profile_memory,
            ignore_first_call=flags.ignore_first_call,
        )
        tables.append(text)
    stream, program = _stream_of(flags.destination), with_end(program)
    screen = report(
        program.loop if flags.ignore_first_call else program,
        Layout(width=width_of(stream)),
        full=flags.full,
        stream=stream,
        hints=OF_PROGRAMS,
        tables_follow=bool(tables),
    )
    return "\n\n".join([screen, *tables])


def print_report(report: str, destination: str) -> None:
    """Print to "stderr" or "stdout"; not if the program has closed that."""
    if (stream := _stream_of(destination)) is not None:
        with suppress(ValueError):
            print(report, file=stream, flush=True)


def _stream_of(destination: str) -> TextIO | None:
    """The stream of a destination; None if that is a file, or the stream is closed."""
    streams = {"stderr": sys.stderr, "stdout": sys.stdout}
    return streams.get(destination)


def flush_output() -> None:
    """Flush the output of the program. For a SIGTERM that comes while the report is
    made: without a report, Python would have flushed the output before the signal."""
    with suppress(Exception):  # closed, or full
        sys.stdout.flush()


def ended_by(name_of: Callable[[torch.nn.Module], str | None]) -> str:
    """``ValueError in Net.head``: the exception that ends the program, and the module
    that this came out of first; "" if none does. name_of: names of modules."""
    error = getattr(sys, "last_value", None)
    place = getattr(error, "__traceback__", None)
    # Test runners and notebooks set it, too, and go on; so does Python at its prompt.
    if place is None or place.tb_frame.f_back is not None or hasattr(sys, "ps1"):
        return ""
    modules = [name_of(module) for module in modules_left(place)]
    places = [f"in {name}" for name in modules if name][-1:]
    return " ".join([type(error).__name__, *places])


def compilation_so_far() -> CompilationSummary | None:
    """What torch.compile has done; None if it is not imported, or cannot be read."""
    if "torch._dynamo" not in sys.modules:
        return None
    from torchprof_hooks.kernel.torch_names.compile_metrics import read_compilation

    with suppress(Exception):
        return read_compilation()
    return None


def compilation_since(earlier: CompilationSummary | None) -> CompilationSummary:
    """What torch.compile has done since `earlier`. The summary is empty if torch has
    changed the private names from which this is read."""
    from torchprof_hooks.profiles.compilation import CompilationSummary

    found = compilation_so_far() or CompilationSummary()
    try:
        return found if earlier is None else found.since(earlier)
    except Exception:
        return CompilationSummary()
