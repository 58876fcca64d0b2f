"""Tells trackers when a program communicates with other processes."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import partial, wraps
from typing import Any, Final

from torch import distributed
from torch.utils.weak import WeakIdKeyDictionary

from torchprof_hooks.capture.attach.attachments import (
    Attachment,
    Layer,
    Make,
    Patch,
    attachments,
)
from torchprof_hooks.capture.backward.backward_pass import gradient_reduction
from torchprof_hooks.capture.communication.gradient_buckets import GradientPatches
from torchprof_hooks.capture.communication.measured import call_measured, wait_measured
from torchprof_hooks.capture.record.exchanges import Exchange
from torchprof_hooks.capture.torch_names.distributed import (
    COLLECTIVES,
    collective_of,
    collectives,
    functional_collectives,
    functional_wait,
    future_makers,
    future_wait,
    group_maker,
    is_distributed,
    pipeline_wait,
    wait_method,
    work_class,
)
from torchprof_hooks.capture.torch_names.place import Function, Place
from torchprof_hooks.capture.torch_names.storages import storage_of

#: Name of the row for the time in which a stage of a pipeline waits for another one.
BUBBLE_NAME: Final = "pipeline bubble"

#: How many results of functional collectives are remembered. If one is forgotten, the
#: wait for it counts as another call, without the collective's name.
MEMORIES_KEPT: Final = 1024


class CommunicationPatches(Attachment):
    """Where a program calls ``torch.distributed``; its users are trackers.

    torch has no hooks for that. So while there are users, this replaces what torch's
    functions call by functions that tell the trackers of the running thread and then do
    the same. In a process without a group, it replaces only the function that would put
    the process into one.

    A collective that was begun with ``async_op=True`` is one call, wherever the program
    waits for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._joining = Patch(group_maker, self._make_joining)
        self._patches: tuple[Patch, ...] = ()  # made when they are first needed
        #: Exchanges that the program has not waited for, by their ``Work`` or future.
        self._begun: MutableMapping[Any, Exchange] = WeakIdKeyDictionary()
        #: Functional collectives, by the memory of their result; None: the program has
        #: waited for it.
        self._memories: dict[int, Exchange | None] = {}

    def put_on(self) -> None:
        """Replace what communicates; without a group, what would make one."""
        if not is_distributed():
            self._joining.put_on()
            if distributed.is_available() and not self._joining.is_on:
                COLLECTIVES.works()  # reports say so if not
            return
        if not self._patches:
            COLLECTIVES.works()  # reports say so if not
            self._patches = tuple(self._all_patches())
        for patch in self._patches:
            patch.put_on()

    def take_off(self) -> bool:
        gradient_reduction.is_expected = False
        for patch in (self._joining, *self._patches):
            patch.take_off()
        return True

    def _all_patches(self) -> list[Patch]:
        makes: list[tuple[Place, Make]] = [
            (place, partial(self._make_measured, name)) for name, place in collectives()
        ]
        makes += [
            (place, partial(self._make_functional, name))
            for name, place in functional_collectives()
        ]
        makes += [(place, self._make_future) for place in future_makers()]
        makes += [
            (functional_wait(), self._make_functional_wait),
            (wait_method(), self._make_wait),
            (future_wait(), self._make_future_wait),
            *GradientPatches(self.trackers_here).makes(),
        ]
        patches = [Patch(place, make) for place, make in makes]
        return [*patches, Patch(pipeline_wait, self._make_bubble)]  # imported late

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
            here = self.trackers_here()
            result, exchange = call_measured(here, name, original, args, kwargs)
            if isinstance(result, work_class()):
                self._begun[result] = exchange
            return result

        return communicate

    def _make_wait(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def wait(*args: Any, **kwargs: Any) -> Any:
            if not layer.is_on or not args:
                return original(*args, **kwargs)
            begun = self._begun.pop(args[0], None)
            exchange = begun or Exchange(collective_of(args[0]))
            return self._wait(exchange, begun is None, original, args, kwargs)

        return wait

    def _make_bubble(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def wait_batch_p2p(*args: Any, **kwargs: Any) -> Any:
            if not layer.is_on or not any((*args, *kwargs.values())):  # for nothing
                return original(*args, **kwargs)
            return self._wait(Exchange(BUBBLE_NAME), True, original, args, kwargs)

        return wait_batch_p2p

    def _make_future(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def make_future(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if layer.is_on and args:
                of = args[0] if isinstance(args[0], list) else args[:1]
                names = [self._begun[begun] for begun in of if begun in self._begun]
                if names:
                    self._begun[made] = names[-1]
            return made

        return make_future

    def _make_future_wait(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def wait(*args: Any, **kwargs: Any) -> Any:
            begun = self._begun.pop(args[0], None) if layer.is_on and args else None
            if begun is None:
                return original(*args, **kwargs)
            return self._wait(begun, False, original, args, kwargs)

        return wait

    def _make_functional(
        self, name: str, original: Function, layer: Layer
    ) -> OperatorStandIn:
        def begin(*args: Any, **kwargs: Any) -> Any:
            if not layer.is_on:
                return original(*args, **kwargs)
            here = self.trackers_here()
            result, exchange = call_measured(here, name, original, args, kwargs)
            for tensor in result if isinstance(result, list) else [result]:
                self._remember(storage_of(tensor), exchange)
            return result

        return OperatorStandIn(original, begin)

    def _make_functional_wait(
        self, original: Function, layer: Layer
    ) -> OperatorStandIn:
        def wait(*args: Any, **kwargs: Any) -> Any:
            memory = storage_of(args[0]) if layer.is_on and args else 0
            unknown = Exchange("wait_tensor")
            begun = self._memories.get(memory, unknown)
            if not memory or begun is None:  # waited for already, perhaps by a view
                return original(*args, **kwargs)
            result = self._wait(begun, begun is unknown, original, args, kwargs)
            self._remember(memory, None)
            return result

        return OperatorStandIn(original, wait)

    def _remember(self, memory: int, exchange: Exchange | None) -> None:
        if len(self._memories) >= MEMORIES_KEPT:
            self._memories.clear()
        self._memories[memory] = exchange

    def _wait(
        self,
        exchange: Exchange,
        is_call: bool,
        original: Function,
        args: Any,
        kwargs: Any,
    ) -> Any:
        here = self.trackers_here()
        return wait_measured(here, exchange, is_call, original, args, kwargs)


class OperatorStandIn:
    """Takes the place of what an operator calls, and has the same hash, by which torch
    hashes the operator."""

    def __init__(self, original: Function, call: Function) -> None:
        self._original = original
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __hash__(self) -> int:
        return hash(self._original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


#: The only ones in the process.
communication_patches: Final = CommunicationPatches()
