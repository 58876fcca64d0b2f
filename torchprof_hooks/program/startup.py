"""Begins to profile a program: at its first import of torch, or at once."""

from __future__ import annotations

import os
from ast import literal_eval
from collections.abc import Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from torchprof_hooks.program.after_import import call_after_import
from torchprof_hooks.program.flags import (
    Flags,
    as_texts,
    full_name,
    make_flags,
    parse_flags,
    settle,
)
from torchprof_hooks.program.handover import (
    FLAGS_VARIABLE,
    is_of_child,
    prepare,
    print_warning,
)

if TYPE_CHECKING:
    from torchprof_hooks.program.recorder import Recorder

#: The environment variable with flags, read when the package is imported.
VARIABLE: Final = "TORCHPROF_HOOKS_FLAGS"


def enable(**flags: Any) -> None:
    """Profile this thread until the program ends, and then print a report.

    Args:
        flags: settings by their names, with or without "profiling." in front, as
            ``python -m torchprof_hooks --help`` and docs/programs.md list them.
            `profile` is True by default; if it is False, nothing is measured. None as a
            file stands for the default.

    Raises:
        FlagError: a flag does not exist, its value is not valid, or a file of that name
            cannot be written.

    Example:
        >>> torchprof_hooks.enable(n_ops=5, destination="report.txt")
        >>> train()  # when the program ends, report.txt begins with:
        torchprof_hooks: train.py, 17.79sec wall
        100 steps of 152.43ms (median 152.04ms, 90 % within 169.60ms) ...
        Hottest module: CharLM.blocks.*.mlp.expand, 18.4 %: 4 Linear, ...
        ...
    """
    settled = settle(make_flags({"profile": True, **flags}), full_name)
    if settled.profile:
        _measure_children(settled)
        begin(settled, is_bound=True)


def begin_from_environment(environment: Mapping[str, str], began_ns: int) -> None:
    """Begin as the variable `VARIABLE` says. A malformed flag ends the program with
    exit code 2: otherwise it would be noticed only when the program ends.

    began_ns: when our code first ran, by `perf_counter_ns`.
    """
    text = environment.get(VARIABLE, "")
    if not text or _is_a_child() or is_of_child(environment):
        return  # children print no report, or begin by `begin_with`
    try:
        flags = settle(parse_flags(text), full_name)
    except ValueError as error:
        print_warning(f"{VARIABLE}: {error}")
        raise SystemExit(2) from None
    if not flags.profile:
        return
    _measure_children(flags)
    ours_ns = perf_counter_ns() - began_ns
    call_after_import("torch", lambda: begin(flags, ours_ns))


def begin_with(text: str) -> None:
    """Begin with the settings that the command, or a measured parent, has handed over.

    text: the settings, with checked flags.
    """
    here_ns = perf_counter_ns()
    given = literal_eval(text)
    flags = make_flags(given["flags"])
    if flags.profile:
        ours_ns = perf_counter_ns() - here_ns
        begin(flags, ours_ns, is_child="launched" not in given)


def _measure_children(flags: Flags) -> None:
    """If the flags ask for it, have processes that this one starts measured, too,
    unless the command has done so already."""
    if flags.children and FLAGS_VARIABLE not in os.environ:
        prepare(os.environ, repr({"flags": as_texts(flags)}))


def _is_a_child() -> bool:
    import multiprocessing

    return multiprocessing.current_process().name != "MainProcess"


def begin(
    flags: Flags,
    ours_ns: int = 0,
    *,
    is_bound: bool = False,
    is_child: bool = False,
) -> None:
    """Begin now, unless the program is being measured already.

    ours_ns: how much our code has taken so far.
    is_bound: whether to measure this thread, even if another one calls a model first.
    is_child: whether a measured program has started this one.
    """
    import torch  # noqa: F401  - first, since this import may call `begin`, too

    began_ns = perf_counter_ns()
    try:
        from torchprof_hooks.program.recorder import Recorder

        if not _running:
            recorder = Recorder(flags, is_bound=is_bound, is_child=is_child)
            _running.append(recorder)
            ours_ns += perf_counter_ns() - began_ns
            recorder.start(ours_ns)
    except Exception as error:  # the program goes on, whatever it is
        print_warning(f"torchprof_hooks: cannot measure: {error!r}")


_running: Final[list[Recorder]] = []
