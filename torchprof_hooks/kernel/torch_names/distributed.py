"""Private names of ``torch.distributed``: which functions communicate, how much they
send to which group, and where a process is in a device mesh."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import FunctionType
from typing import Any, Final, NamedTuple

import torch
from torch import distributed

from torchprof_hooks.kernel.torch_names import Place
from torchprof_hooks.kernel.torch_names.tensors import tensors_in
from torchprof_hooks.profiles.provenance import Coordinate


class Collective(NamedTuple):
    """A function that communicates with other processes: its name, and where torch
    keeps it."""

    name: str
    place: Place


#: Functions that torch wraps like collectives, but which make groups.
_NO_COLLECTIVES: Final = frozenset(
    ["init_process_group", "new_group", "record_comm", "shrink_group", "split_group"]
)

#: Older and internal names of torch's -> the usual name of the same collective.
_OTHER_NAMES: Final = {
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_gather_tensor": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "gather_single": "gather_into_tensor",
    "recv_anysource": "recv",
}

#: Methods of a group that we replace because we cannot replace their callers: torch
#: compares functions with ``isend`` and ``irecv``, which have to stay what they are.
_GROUP_METHODS: Final = ("send", "recv", "recv_anysource")


def is_distributed() -> bool:
    """Whether this process is one of a group."""
    return distributed.is_available() and distributed.is_initialized()


def group_maker() -> Place:
    """Where ``init_process_group`` does its work. If torch has no such place, we do not
    notice groups that are made later."""
    return _inside("init_process_group")


def collectives() -> Iterator[Collective]:
    """Where the functions of ``torch.distributed`` that communicate do their work, and
    where ``DistributedDataParallel`` has its buffers sent around.

    torch wraps each function to log what it raises. We replace the inner function, in
    the wrapper's closure. So the functions themselves stay the ones that the program
    may have imported already, that torch.compile knows, and that torch compares with.
    We do not see functions that are not wrapped like that.
    """
    for name in vars(_c10d) if _c10d else ():
        is_public = not name.startswith("_") or name in _OTHER_NAMES
        place = _inside(name) if is_public and name not in _NO_COLLECTIVES else _NOWHERE
        if place.owner is not None:
            yield Collective(_OTHER_NAMES.get(name, name), place)
    yield Collective("broadcast", Place(_ddp, "_distributed_broadcast_coalesced"))
    group = getattr(distributed, "ProcessGroup", None)
    for name in _GROUP_METHODS:
        yield Collective(_OTHER_NAMES.get(name, name), Place(group, name))


def wait_method() -> Place:
    """The method by which a program waits for an asynchronous collective."""
    return Place(getattr(distributed, "Work", None), "wait")


def functional_wait() -> Place:
    """What the operator calls that waits for the result of a functional collective:
    those of DTensor, and so of all that builds on it."""
    operators = getattr(torch.ops, "_c10d_functional", None)
    return Place(getattr(operators, "wait_tensor", None), "_op")


def prepare_for_backward() -> Place:
    """What ``DistributedDataParallel`` calls to be ready for a backward pass."""
    return Place(getattr(distributed, "Reducer", None), "prepare_for_backward")


def work_class() -> Any:
    """The class of what an asynchronous collective returns; () if torch has none."""
    return getattr(distributed, "Work", ())


_NOWHERE: Final = Place(None, "")

_c10d: Final[Any] = getattr(distributed, "distributed_c10d", None)

_ddp: Final = getattr(
    sys.modules.get("torch.nn.parallel.distributed"), "DistributedDataParallel", None
)


@cache
def _inside(name: str) -> Place:
    """The cell, in the closure of its innermost wrapper, of the function with this
    name. Looked up once, as it is recognised by its content, which we then replace."""
    function: Any = getattr(_c10d, name, None)
    found = None
    while type(function) is FunctionType and hasattr(function, "__wrapped__"):
        inner = function.__wrapped__
        cells = [c for c in function.__closure__ or () if c.cell_contents is inner]
        if len(cells) != 1:
            break
        [found], function = cells, inner
    return Place(found, "cell_contents")


# What is sent, and to whom


class Group(NamedTuple):
    """A group of processes: what torch calls it, and how many there are."""

    name: str = ""
    size: int = 0


def group_of(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Group:
    """The group that a function of ``torch.distributed`` is called for: an argument, by
    itself or by its name, or the method's owner; by default, that of all processes."""
    kinds = distributed.ProcessGroup
    for value in (*args, *kwargs.values()):
        group = _named(value) if type(value) is str else value
        if isinstance(group, kinds):
            return _described(group)
    return _described(distributed.group.WORLD)


def _named(name: str) -> Any:
    try:
        return _c10d._resolve_process_group(name)
    except (AttributeError, RuntimeError, LookupError, ValueError):
        return None


def _described(group: Any) -> Group:
    try:
        return Group(str(group.group_desc), int(group.size()))
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return Group()


def data_bytes(values: Iterable[Any]) -> int:
    """Bytes of the largest of these: tensors, or lists of them."""
    with torch._C.DisableTorchFunction():  # no mode is to see this
        sizes = (sum(map(_bytes_of, tensors_in([value]))) for value in values)
        return max(sizes, default=0)


def _bytes_of(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.nbytes)
    except (RuntimeError, TypeError, ValueError):  # sparse; or of unknown size
        return 0


# Device meshes


#: Prefix of the name of a mesh dimension's group; the name of the dimension follows.
_OF_MESH: Final = "mesh_"
#: The group of a mesh that has one dimension: all processes.
_WHOLE_MESH: Final = "mesh_default"


def mesh_coordinates() -> tuple[Coordinate, ...]:
    """The place of this process in each dimension of a ``DeviceMesh``, in the order in
    which their groups were made; () without a mesh, or where all are in one dimension.

    A mesh makes a group for each dimension, and names it after the dimension: these
    names are read, since torch keeps no list of all meshes.
    """
    if not is_distributed():
        return ()
    try:
        return tuple(dict.fromkeys(_coordinates()))
    except (AttributeError, KeyError, RuntimeError, TypeError):
        return ()


def _coordinates() -> Iterator[Coordinate]:
    own = distributed.get_rank()
    for group, places in list(_c10d._world.pg_group_ranks.items()):
        name = getattr(group, "group_desc", "")  # some stand for "not in this group"
        is_dimension = name.startswith(_OF_MESH) and name != _WHOLE_MESH
        if is_dimension and own in places and len(places) > 1:
            yield Coordinate(name.removeprefix(_OF_MESH), places[own], len(places))
