"""Private names that tell what is sent to other processes, and to which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import distributed

from torchprof_hooks.capture.torch_names.place import Place


class Group(NamedTuple):
    """A group of processes: what torch calls it, and how many there are."""

    name: str = ""
    size: int = 0


def group_of(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Group:
    """The group that a function of ``torch.distributed`` is called for, given as an
    argument, by name, or as the method's owner; by default, that of all processes."""
    kinds = distributed.ProcessGroup
    for value in (*args, *kwargs.values()):
        group = _named(value) if type(value) is str else value
        if isinstance(group, kinds):
            return _described(group)
    return _described(distributed.group.WORLD)


def _named(name: str) -> Any:
    c10d: Any = distributed.distributed_c10d
    try:
        return c10d._resolve_process_group(name)
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
        return max(map(_bytes_of, values), default=0)


def _bytes_of(value: Any) -> int:
    if issubclass(type(value), torch.Tensor):
        try:
            return int(value.nbytes)
        except (RuntimeError, TypeError, ValueError):  # sparse; or of unknown size
            return 0
    return sum(map(_bytes_of, value)) if issubclass(type(value), (list, tuple)) else 0


def is_begun(result: Any) -> bool:
    """Whether what a call with this result has begun is still to be waited for: the
    result is a ``Work``, or the tensors of a functional collective."""
    work = getattr(distributed, "Work", ())
    return isinstance(result, (work, torch.Tensor)) or (
        type(result) is list and all(isinstance(each, torch.Tensor) for each in result)
    )


def logger_method() -> Place:
    """The method of its reducer's logger that ``DistributedDataParallel`` calls before
    each forward that a reduction of gradients follows."""
    logger = getattr(distributed, "Logger", None)
    return Place(logger, "set_runtime_stats_and_log")


def logged(logger: Any) -> Mapping[str, int | str]:
    """What a logger knows: "world_size", "bucket_sizes" and the like; nothing, where
    this torch has no such thing."""
    try:
        found = logger._get_ddp_logging_data()
        return {**found.strs_map, **found.ints_map}
    except (AttributeError, RuntimeError):
        return {}
