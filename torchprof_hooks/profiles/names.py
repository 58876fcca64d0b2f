"""The words that every layer shares: phases, kinds of rows, and their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Final, Literal, get_args

from torchprof_hooks.profiles.options import check_choice

#: Phases of rows that are neither modules nor functions; each is also their kind.
OtherPhase = Literal[
    "optimizer",
    "data",
    "waiting",
    "communication",
    "compiling",
    "garbage",
    "outside",
    "profiler",
]
Phase = Literal["forward", "backward", "recompute", OtherPhase]
#: Phases of a module, in the order in which reports show them.
MODULE_PHASES: Final[tuple[Phase, ...]] = ("forward", "backward", "recompute")

#: Phases in which modules are called: recomputing is calling again.
CALLED_PHASES: Final[tuple[Phase, ...]] = ("forward", "recompute")

#: Phases that are parts of a backward pass.
BACKWARD_PHASES: Final[tuple[Phase, ...]] = ("backward", "recompute")

#: Kinds of rows. "backward" is backward time that no module owns.
Kind = Literal["module", "function", "backward", OtherPhase, "not measured"]
OUTSIDE_NAME: Final = "(outside modules)"
#: Time outside modules between a backward pass and the next forward, if no torch
#: optimizer steps: most likely that of another optimizer.
AFTER_BACKWARD_NAME: Final = "(outside modules, after backward)"
AFTER_LAST_NAME: Final = "(outside modules, after the last step)"
#: Time of a program until it imported torch, when measuring began.
BEFORE_NAME: Final = "(before torch was imported)"
#: Time that is not spent once a step.
IN_NO_STEP: Final = (BEFORE_NAME, AFTER_LAST_NAME)
BACKWARD_NAME: Final = "(backward outside modules)"
#: Time of a backward pass before its first node and after its last one: the engine
#: examines the graph, and runs the callbacks that it was given for the end.
ENGINE_NAME: Final = "(autograd engine)"
#: Time in which the loop waits for a ``DataLoader``.
DATA_NAME: Final = "(data loading)"
#: Time at the end of a backward pass in which the process waits for the gradients of
#: other processes and sums them up.
WAITING_NAME: Final = "(waiting for gradients)"
#: Time in which ``torch.compile`` compiles, whichever module is being compiled.
COMPILING_NAME: Final = "(torch.compile)"
#: The class of rows for kernels that ``torch.compile`` has made of several modules.
FUSED_CLASS: Final = "fused kernel"
#: Time in which Python searches all objects for garbage, in whichever call.
GARBAGE_NAME: Final = "(garbage collection)"
PROFILER_NAME: Final = "(profiler overhead)"
#: Time of the steps that were not measured.
NOT_MEASURED_NAME: Final = "(not measured)"
#: Time of modules themselves, in tables whose rows are functions.
MODULES_NAME: Final = "(modules, outside functions)"


def optimizer_name(class_name: str) -> str:
    """The name of the row for the steps of optimizers of one class."""
    return f"(optimizer) {class_name}"


#: How the names of rows for collectives begin.
COMMUNICATION_PREFIX: Final = "(communication) "


def communication_name(collective: str) -> str:
    """The name of the row for calls of a function of ``torch.distributed``."""
    return COMMUNICATION_PREFIX + collective


def united(one: str, other: str, separator: str) -> str:
    """The parts of two texts, each once, in alphabetical order."""
    parts = {*one.split(separator), *other.split(separator)} - {""}
    return separator.join(sorted(parts))


#: How many shapes, or runs of equal ones, the name of a function call may show.
SHAPES_SHOWN: Final = 6
#: This many equal shapes in a row, or more, are counted instead of repeated.
_SHORTEST_RUN: Final = 3


def function_call_name(
    name: str, shapes: Sequence[Sequence[object]] | None, types: Sequence[str] = ()
) -> str:
    """The name for calls of a function with tensors of these shapes:
    ``linear(32x64, 256x64, 256)``, ``cat(50 * 32x64)``; ``relu()`` if the shapes are
    not known.

    types: those of their numbers that the name says: ``exp(32x64; float64)``.
    """
    texts = list(islice(_shape_texts(shapes or ()), SHAPES_SHOWN + 1))
    if len(texts) > SHAPES_SHOWN:
        texts[SHAPES_SHOWN:] = ["..."]
    said = f"; {', '.join(types)}" if types else ""
    return f"{name}({', '.join(texts)}{said})"


def _shape_texts(shapes: Sequence[Sequence[object]]) -> Iterator[str]:
    for text, run in groupby("x".join(map(str, s)) or "scalar" for s in shapes):
        length = sum(1 for _ in run)
        if length < _SHORTEST_RUN:
            yield from [text] * length
        else:
            yield f"{length} * {text}"


#: How calls of modules can be grouped.
ModuleGrouping = Literal["module", "class"]
MODULE_GROUPINGS: Final[tuple[ModuleGrouping, ...]] = get_args(ModuleGrouping)

#: How calls of functions can be grouped.
FunctionGrouping = Literal["function", "module", "call"]
FUNCTION_GROUPINGS: Final[tuple[FunctionGrouping, ...]] = get_args(FunctionGrouping)

#: How the rows of a profile can be grouped.
Grouping = Literal["module", "class", "function", "call"]
GROUPINGS: Final[tuple[Grouping, ...]] = get_args(Grouping)


def check_grouping(by: str, valid: Sequence[str] = MODULE_GROUPINGS) -> None:
    """Raise ValueError (or TypeError) if `by` is not one of the valid groupings."""
    check_choice("by", by, valid)


#: One unit for the table, chosen for its largest value ("auto"), the best one for each
#: value ("auto_foreach"), or a unit by name.
TimeUnit = Literal["auto", "auto_foreach", "sec", "ms", "us", "ns"]
#: The same for bytes, where "auto" chooses one unit for each column.
ByteUnit = Literal[
    "auto", "auto_foreach", "B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB"
]

#: The columns by which the rows of a report can be chosen and sorted.
SortBy = Literal["calls", "forward", "backward", "recompute", "device", "self", "total"]
SORT_KEYS: Final[tuple[SortBy, ...]] = get_args(SortBy)
