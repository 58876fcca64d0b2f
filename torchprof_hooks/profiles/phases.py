"""The one table of phases: what each is called, and the rows that are neither modules
nor functions. A new phase is a new line here, and its name in `OtherPhase`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, cast

from torchprof_hooks.profiles.names import (
    AFTER_BACKWARD_NAME,
    AFTER_LAST_NAME,
    BACKWARD_NAME,
    BEFORE_NAME,
    COMMUNICATION_PREFIX,
    COMPILING_NAME,
    DATA_NAME,
    ENGINE_NAME,
    GARBAGE_NAME,
    NOT_MEASURED_NAME,
    OUTSIDE_NAME,
    PROFILER_NAME,
    WAITING_NAME,
    Kind,
    Phase,
)


class PhaseInfo(NamedTuple):
    """What is known of a phase.

    title: its name in reports.
    rows: names of the rows that have this kind. Optimizers and collectives have names
        of their own.
    calls: what its calls are called, one and several.
    is_apart: whether it has a column of its own in the table of ranks.
    colour: of its bars in a terminal; "" for the usual one. On pages, the CSS class is
        made of the title.
    """

    title: str
    rows: tuple[str, ...] = ()
    calls: tuple[str, str] = ("call", "calls")
    is_apart: bool = True
    colour: Literal["", "blue", "magenta"] = ""


#: All phases, in the order of lists that are not sorted by time.
PHASES: Final[Mapping[Phase, PhaseInfo]] = {
    "forward": PhaseInfo("forward", colour="blue"),
    "backward": PhaseInfo("backward", (BACKWARD_NAME, ENGINE_NAME), colour="magenta"),
    "recompute": PhaseInfo("recompute", colour="magenta"),
    "optimizer": PhaseInfo("optimizers", calls=("step", "steps")),
    "data": PhaseInfo("data loading", (DATA_NAME,), ("batch", "batches")),
    "waiting": PhaseInfo("waiting for gradients", (WAITING_NAME,)),
    "communication": PhaseInfo("communication"),
    "compiling": PhaseInfo(
        "torch.compile",
        (COMPILING_NAME,),
        ("compilation", "compilations"),
        is_apart=False,
    ),
    "garbage": PhaseInfo(
        "garbage collection",
        (GARBAGE_NAME,),
        ("collection", "collections"),
        is_apart=False,
    ),
    "outside": PhaseInfo(
        "outside modules",
        (OUTSIDE_NAME, AFTER_BACKWARD_NAME, AFTER_LAST_NAME, BEFORE_NAME),
        ("step", "steps"),
        is_apart=False,
    ),
    "profiler": PhaseInfo("profiler overhead", (PROFILER_NAME,), is_apart=False),
}

#: Phases in which a process waits for others.
WAITING_PHASES: Final[tuple[Phase, ...]] = ("waiting", "communication")

#: The titles alone.
PHASE_TITLES: Final[Mapping[str, str]] = {
    phase: info.title for phase, info in PHASES.items()
}

#: The phase of rows that stand for no calls, by their kind: they have only one.
PHASE_OF_KIND: Final[Mapping[str, Phase]] = {phase: phase for phase in PHASES}

_KINDS: Final[Mapping[str, Kind]] = {
    **{row: cast("Kind", p) for p, info in PHASES.items() for row in info.rows},
    NOT_MEASURED_NAME: "not measured",
}


def kind_of_other(name: str) -> Kind:
    """The kind of a row that is neither a module nor a function, by its name."""
    if name.startswith(COMMUNICATION_PREFIX):
        return "communication"
    return _KINDS.get(name, "optimizer")
