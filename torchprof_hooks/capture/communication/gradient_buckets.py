"""Tells trackers what ``DistributedDataParallel`` does with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import wraps
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from torch.utils.weak import WeakIdKeyDictionary

from torchprof_hooks.capture.attach.attachments import Layer, Make
from torchprof_hooks.capture.backward.backward_pass import gradient_reduction
from torchprof_hooks.capture.communication.measured import communicated
from torchprof_hooks.capture.record.exchanges import Exchange, GradientBuckets
from torchprof_hooks.capture.torch_names.distributed import (
    group_of,
    logged,
    logger_method,
    reducer_method,
)
from torchprof_hooks.capture.torch_names.place import Function, Place

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker

#: Before which forwards we read the logger, which takes 50 us: torch makes new buckets
#: after the first backward, and measures durations in the first ten and each 100th.
_ASKED_FIRST: Final = (1, 3, 12)
_ASKED_EACH: Final = 100


class GradientPatches:
    """Where ``DistributedDataParallel`` calls its reducer and the reducer's logger.

    trackers_here: gives the trackers that work for the running thread.
    """

    def __init__(self, trackers_here: Callable[[], Sequence[Tracker]]) -> None:
        self._trackers_here = trackers_here
        #: By logger: how many forwards there were, and what it told last.
        self._asked: MutableMapping[Any, tuple[int, GradientBuckets]]
        self._asked = WeakIdKeyDictionary()
        self._coming = GradientBuckets()

    def makes(self) -> Iterator[tuple[Place, Make]]:
        """The places of the functions to replace, and what makes the replacements."""
        yield logger_method(), self._make_log
        yield reducer_method("prepare_for_backward"), self._make_prepare
        yield reducer_method("_rebuild_buckets"), self._make_rebuild

    def _make_log(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def set_runtime_stats_and_log(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if layer.is_on and args:
                self._coming = self._buckets(args[0])
            return result

        return set_runtime_stats_and_log

    def _buckets(self, logger: Any) -> GradientBuckets:
        count, buckets = self._asked.get(logger, (0, GradientBuckets()))
        count += 1
        if count in _ASKED_FIRST or not count % _ASKED_EACH:
            buckets = _read_buckets(logged(logger))
        self._asked[logger] = count, buckets
        return buckets

    def _make_prepare(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def prepare_for_backward(*args: Any, **kwargs: Any) -> Any:
            gradient_reduction.is_expected = layer.is_on
            gradient_reduction.buckets = self._coming
            return original(*args, **kwargs)

        return prepare_for_backward

    def _make_rebuild(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def rebuild_buckets(*args: Any, **kwargs: Any) -> Any:
            start_ns = perf_counter_ns()
            was_rebuilt = original(*args, **kwargs)
            if was_rebuilt and layer.is_on:  # the first process has sent the order
                exchange = Exchange("broadcast", *group_of((), {}), start_ns)
                for tracker in self._trackers_here():
                    communicated(tracker, exchange)
            return was_rebuilt

        return rebuild_buckets


def _read_buckets(said: Any) -> GradientBuckets:
    """What the logger says: bytes as "33280, 33280", a time in nanoseconds."""
    text = said.get("rebuilt_bucket_sizes") or said.get("bucket_sizes", "")
    sizes = [int(size) for size in text.split(",") if size.strip().isdigit()]
    took_ns = said.get("avg_backward_comm_time", 0)
    return GradientBuckets(said.get("world_size", 0), len(sizes), sum(sizes), took_ns)
