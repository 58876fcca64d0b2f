"""Tells trackers when a program communicates with other processes."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import partial, wraps
from time import perf_counter_ns
from typing import Any, Final

from torch.compiler import is_dynamo_compiling
from torch.utils.weak import WeakIdKeyDictionary

from torchprof_hooks.capture.attach.attachments import Attachment, attachments
from torchprof_hooks.capture.attach.patch import Layer, Make, Patch
from torchprof_hooks.capture.gradient_reduction import gradient_reduction
from torchprof_hooks.capture.owning_tracker import OwningTracker
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.torch_names.collectives import (
    collective_of,
    collectives,
    functional_collective,
    functional_method,
    group_maker,
    is_distributed,
    is_waited_for,
    memory_of,
    reducer_method,
    wait_method,
    work_class,
)
from torchprof_hooks.capture.torch_names.compiler import is_tracing
from torchprof_hooks.capture.torch_names.place import Function, Place
from torchprof_hooks.capture.tracebacks import leave_out_our_frame

#: Results of functional collectives whose names are remembered. Forgetting one costs
#: the name of a view.
MEMORIES_KEPT: Final = 1024


class CommunicationPatches(Attachment):
    """Where a program calls ``torch.distributed``; its users are trackers.

    torch has no hooks for that, so while any of them listens, what its functions call
    is replaced by something that tells those of the running thread and then does the
    same. A process that is in no group has a single replacement: that of what would put
    it into one.

    A collective that was begun with ``async_op=True`` is one call, wherever it is
    waited for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._joining = Patch(group_maker, self._make_joining)
        self._patches: tuple[Patch, ...] = ()  # made when they are first needed
        #: Of what is not waited for yet, the name.
        self._begun: MutableMapping[Any, str] = WeakIdKeyDictionary()
        self._memories: dict[int, str] = {}  # where its result will be

    def put_on(self) -> None:
        """Replace what there is to be told of at present."""
        if not is_distributed():
            self._joining.put_on()
            return
        if not self._patches:
            self._patches = tuple(self._all_patches())
        for patch in self._patches:
            patch.put_on()

    def take_off(self) -> bool:
        """Put everything back."""
        gradient_reduction.is_expected = False
        for patch in (self._joining, *self._patches):
            patch.take_off()
        return True

    def _all_patches(self) -> list[Patch]:
        makes: list[tuple[Place, Make]] = [
            (place, partial(self._make_measured, name)) for name, place in collectives()
        ]
        makes += [
            (wait_method(), self._make_wait),
            (reducer_method("prepare_for_backward"), _make_prepare),
            (reducer_method("_rebuild_buckets"), self._make_rebuild),
        ]
        later = {
            "__new__": self._make_new,
            "trigger_wait": self._make_functional_wait,
            "wait": self._make_functional_wait,
        }
        return [
            *(Patch(partial(_same, place), make) for place, make in makes),
            *(Patch(partial(functional_method, n), make) for n, make in later.items()),
        ]

    # What takes the place of torch's functions

    def _make_joining(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def join_group(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if layer.is_on:
                attachments.renew(self)
            return made

        return join_group

    def _make_measured(self, name: str, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def communicate(*args: Any, **kwargs: Any) -> Any:
            if not layer.is_on:
                return original(*args, **kwargs)
            result = self._measured(name, True, original, args, kwargs)
            if isinstance(result, work_class()):
                self._begun[result] = name
            return result

        return communicate

    def _make_wait(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def wait(*args: Any, **kwargs: Any) -> Any:
            if not layer.is_on or not args:
                return original(*args, **kwargs)
            begun = self._begun.pop(args[0], None)
            name = begun or collective_of(args[0])
            return self._measured(name, begun is None, original, args, kwargs)

        return wait

    def _make_new(self, original: Any, layer: Layer) -> Function:
        make = original.__func__

        @wraps(make)
        def new(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            if layer.is_on:
                self._begun[made] = self._name_of_functional(memory_of(args[-1]))
            return made

        return staticmethod(new)

    def _name_of_functional(self, memory: int) -> str:
        """A view of what is not there yet is waited for like the whole."""
        name = functional_collective() or self._memories.get(memory, "wait_tensor")
        if len(self._memories) >= MEMORIES_KEPT:
            self._memories.clear()
        self._memories[memory] = name
        return name

    def _make_functional_wait(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def wait(tensor: Any) -> Any:
            if not layer.is_on or is_waited_for(tensor):
                return original(tensor)
            name = self._begun.pop(tensor, "wait_tensor")
            return self._measured(name, True, original, (tensor,), {})

        return wait

    def _make_rebuild(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def rebuild_buckets(*args: Any, **kwargs: Any) -> Any:
            start_ns = perf_counter_ns()
            was_rebuilt = original(*args, **kwargs)
            if was_rebuilt and layer.is_on:  # the first process has told the others how
                for tracker in self._trackers_here():
                    tracker.communicated("broadcast", start_ns)
            return was_rebuilt

        return rebuild_buckets

    def _measured(
        self, name: str, is_call: bool, original: Function, args: Any, kwargs: Any
    ) -> Any:
        if is_dynamo_compiling() or is_tracing():
            return original(*args, **kwargs)
        begun: list[tuple[OwningTracker, Site]] = []
        try:
            for tracker in self._trackers_here():
                site = tracker.begin_communication(name, is_call)
                if site is not None:
                    begun.append((tracker, site))
            result = original(*args, **kwargs)
        except BaseException as error:
            for tracker, site in reversed(begun):
                tracker.communication_failed(site)
            leave_out_our_frame(error)
            raise
        for tracker, site in reversed(begun):
            tracker.end_communication(site)
        return result

    def _trackers_here(self) -> list[OwningTracker]:
        living = (reference() for reference in self._users)
        return [t for t in living if t is not None and t.works_here()]


def _make_prepare(original: Function, layer: Layer) -> Function:
    @wraps(original)
    def prepare_for_backward(*args: Any, **kwargs: Any) -> Any:
        gradient_reduction.is_expected = layer.is_on
        return original(*args, **kwargs)

    return prepare_for_backward


def _same(place: Place) -> Place:
    return place


#: All there are.
communication_patches: Final = CommunicationPatches()
