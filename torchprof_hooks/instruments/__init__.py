"""What is measured beside the host time of calls: each file or folder is an instrument,
which derives from `Observer`, and knows no other one. Here they are chosen.

The kernel notifies them in their order, and at ends of something in the reverse order:
who has to be notified before an optimizer's own time begins comes before `Optimizers`.

An instrument whose code is not there is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchprof_hooks.kernel.core import CORE

if TYPE_CHECKING:
    import torch

    from torchprof_hooks.kernel.attachments import Attachment
    from torchprof_hooks.kernel.observer import Observer
    from torchprof_hooks.profiles.program import ProgramFacts


def interrupting(
    follows_loading: bool = False,
    reads_facts: bool = False,
    divides: bool = False,
    in_trace: bool = False,
) -> Iterator[Observer]:
    """What interrupts calls, in each thread that is followed.

    follows_loading: whether modules that are called while data is loaded are calls of
        their own.
    reads_facts: whether optimizers are looked at (see `facts_of_program`).
    divides: whether compiled code is divided among modules, as if these were called.
    in_trace: whether spans are kept one by one.
    """
    yield from _made("data_loading", "DataLoading", follows_loading)
    yield from _made("compiled.observer", "Compilations", divides, in_trace)
    yield from _made("communication.patches", "Communication")
    yield from _made("optimizers", "Optimizers", reads_facts)


def of_a_trace() -> Iterator[Observer]:
    """What observes a thread whose spans are kept one by one."""
    yield from interrupting(divides=True, in_trace=True)


def between_traces() -> Iterator[Attachment]:
    """What is on torch for traces while no step is traced: code that is compiled then
    runs later."""
    found = _found("compiled.observer", "maps")
    if found is not None:
        yield found


def of_a_profile(
    *, functions: bool, memory: bool | str | torch.device
) -> Iterator[Observer]:
    """What observes a thread for `profile`. What it does not need is not imported."""
    yield from _made("garbage", "Garbage")
    yield from _made("slow_steps.kept", "SlowSteps")
    yield from _made("devices", "device_observers")
    if memory is not False:
        device = None if memory is True else memory
        yield from _made("memory.instrument", "memory_observers", device)
    if functions and CORE.module is not None:
        yield from _made("functions.operators", "OperatorCalls")
    yield from interrupting(reads_facts=True, divides=True)


def facts_of_program(observers: Iterable[Observer]) -> ProgramFacts:
    """What they know of the program besides measurements."""
    from torchprof_hooks.profiles.program import ProgramFacts

    find = _found("optimizers", "facts_of")
    found: ProgramFacts = ProgramFacts() if find is None else find(observers)
    return found


def _made(module: str, name: str, *options: Any) -> Iterator[Observer]:
    """What is made by a class, or by a function that returns several."""
    make = _found(module, name)
    if make is not None:
        made = make(*options)
        yield from made if isinstance(made, list) else [made]


def _found(module: str, name: str) -> Any:
    """A name of an instrument's module; None if that is not there."""
    path = f"{__name__}.{module}"
    try:
        return getattr(import_module(path), name)
    except ModuleNotFoundError as error:
        if error.name is None or not path.startswith(error.name):
            raise
        return None
