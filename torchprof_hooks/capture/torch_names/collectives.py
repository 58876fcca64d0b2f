"""Private names of ``torch.distributed``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from types import FrameType, FunctionType
from typing import Any, Final, NamedTuple

from torch import distributed

from torchprof_hooks.capture.torch_names.place import Place


class Collective(NamedTuple):
    """Something that communicates with other processes, by its name, and where it is
    called."""

    name: str
    place: Place


#: Functions of this module that are called by collectives' names, but make groups.
_NO_COLLECTIVES: Final = frozenset(
    ["init_process_group", "new_group", "record_comm", "shrink_group", "split_group"]
)

#: Names that torch gave to one and the same collective over time, or uses inside.
_OTHER_NAMES: Final = {
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_gather_tensor": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "gather_single": "gather_into_tensor",
}

#: Which collective a ``Work`` is of, by the number that torch gives to each.
_OP_TYPES: Final = (
    "broadcast",
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_coalesced",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all_single",
    "all_to_all",
    "send",
    "recv",
    "recv",
    "barrier",
    "reduce_scatter_tensor",
    "coalesced",
)


def is_distributed() -> bool:
    """Whether this process is one of a group."""
    return distributed.is_available() and distributed.is_initialized()


#: How many frames torch's wrapping of a result may have at most: it is an operator.
_FRAMES_OF_WRAPPING: Final = 32


def group_maker() -> Place:
    """Where ``init_process_group`` does its work. Where torch has no such place, groups
    that are made later are not noticed."""
    return _inside("init_process_group")


def collectives() -> Iterator[Collective]:
    """Where the functions of ``torch.distributed`` that communicate do their work, and
    where ``DistributedDataParallel`` has its buffers sent around.

    torch wraps each function to log what it raises. What the wrapper calls is in its
    closure, which can be given something else: so the functions stay the ones that the
    program may have imported already, that torch.compile knows, and that torch compares
    with. What is not wrapped like that is not seen; ``isend`` and ``irecv``, which only
    begin something, are not.
    """
    for name in vars(_c10d) if _c10d else ():
        is_public = not name.startswith("_") or name in _OTHER_NAMES
        place = _inside(name) if is_public and name not in _NO_COLLECTIVES else _NOWHERE
        if place.owner is not None:
            yield Collective(_OTHER_NAMES.get(name, name), place)
    yield Collective("broadcast", Place(_ddp, "_distributed_broadcast_coalesced"))


def wait_method() -> Place:
    """The method by which a program waits for what it has begun."""
    return Place(work_class(), "wait")


def functional_method(name: str) -> Place:
    """A method of what functional collectives return, which is waited for when it is
    first used: as in DTensor, and so in all that builds on it."""
    module = sys.modules.get("torch.distributed._functional_collectives")
    return Place(getattr(module, "AsyncCollectiveTensor", None), name)


def is_waited_for(tensor: Any) -> bool:
    """Whether that has happened already."""
    return bool(getattr(tensor, "completed", False))


def functional_collective() -> str:
    """Name of the functional collective that makes what it returns: whichever calls
    what wraps that. "" if it is not told: of views, for example."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES_OF_WRAPPING):
        if frame is None or frame.f_code.co_name == "_maybe_wrap_tensor":
            break
        frame = frame.f_back
    caller = frame and frame.f_back
    name = caller.f_code.co_name if caller else ""
    if hasattr(_c10d, name) or name in _OTHER_NAMES:
        return _OTHER_NAMES.get(name, name)
    return ""


def memory_of(tensor: Any) -> int:
    """A number that a tensor and all its views have in common, while one of them lives;
    0 where there is none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (AttributeError, RuntimeError):
        return 0


def reducer_method(name: str) -> Place:
    """What ``DistributedDataParallel`` calls of its reducer: "prepare_for_backward", to
    be ready for a backward pass; "_rebuild_buckets", to agree on the order of gradients
    once."""
    return Place(getattr(distributed, "Reducer", None), name)


def work_class() -> Any:
    """The class of what an asynchronous collective returns; None if torch has none."""
    return getattr(distributed, "Work", None)


def collective_of(work: Any) -> str:
    """Name of the collective that `work` is of, "wait" if torch does not tell."""
    try:
        return _OP_TYPES[work._get_op_type()]
    except (AttributeError, IndexError, RuntimeError):
        return "wait"


_NOWHERE: Final = Place(None, "")

_c10d: Final = getattr(distributed, "distributed_c10d", None)

_ddp: Final = getattr(
    sys.modules.get("torch.nn.parallel.distributed"), "DistributedDataParallel", None
)


@cache
def _inside(name: str) -> Place:
    """The innermost closure around the function of this name; found once, for it is
    known by what it holds at first."""
    function: Any = getattr(_c10d, name, None)
    found = None
    while type(function) is FunctionType and hasattr(function, "__wrapped__"):
        inner = function.__wrapped__
        cells = [c for c in function.__closure__ or () if c.cell_contents is inner]
        if len(cells) != 1:
            break
        [found], function = cells, inner
    return Place(found, "cell_contents")
