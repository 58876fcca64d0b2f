"""The words that every layer shares: phases, and the rows that are not modules."""

from __future__ import annotations

from typing import Final, Literal

Phase = Literal["forward", "backward", "recompute", "optimizer", "outside", "profiler"]

#: Phases of a module, in the order in which reports show them.
MODULE_PHASES: Final[tuple[Phase, ...]] = ("forward", "backward", "recompute")

#: Phases in which modules are called: recomputing is calling again.
CALLED_PHASES: Final[tuple[Phase, ...]] = ("forward", "recompute")

Kind = Literal["module", "optimizer", "backward", "outside", "profiler"]

OUTSIDE_NAME: Final = "(outside modules)"
BACKWARD_NAME: Final = "(backward outside modules)"
PROFILER_NAME: Final = "(profiler)"


def optimizer_name(class_name: str) -> str:
    """Name of the row for the steps of optimizers of one class."""
    return f"(optimizer) {class_name}"


#: By what rows can be grouped.
GROUPINGS: Final = ("module", "class")


def check_grouping(by: str) -> None:
    """Raise ValueError, with the valid ones, if `by` is not one of `GROUPINGS`."""
    if by not in GROUPINGS:
        valid = " or ".join(repr(name) for name in GROUPINGS)
        raise ValueError(f"cannot group by {by!r}: use {valid}")
