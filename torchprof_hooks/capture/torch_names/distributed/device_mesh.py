"""Private names by which a process finds its place in a device mesh."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from torch import distributed

from torchprof_hooks.capture.torch_names.distributed.collectives import is_distributed
from torchprof_hooks.capture.torch_names.place import Place
from torchprof_hooks.profiles.ranks.provenance import Coordinate

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
    c10d: Any = distributed.distributed_c10d
    own = distributed.get_rank()
    for group, places in list(c10d._world.pg_group_ranks.items()):
        name = getattr(group, "group_desc", "")  # some stand for "not in this group"
        is_dimension = name.startswith(_OF_MESH) and name != _WHOLE_MESH
        if is_dimension and own in places and len(places) > 1:
            yield Coordinate(name.removeprefix(_OF_MESH), places[own], len(places))


def pipeline_wait() -> Place:
    """The function by which a stage of a pipeline waits for others, if pipelines are
    imported."""
    module = sys.modules.get("torch.distributed.pipelining.schedules")
    return Place(module, "_wait_batch_p2p")
