"""Where a program communicates with other processes."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final

from torch.utils.weak import WeakIdKeyDictionary

from torchprof_hooks.instruments.communication.measured import (
    Exchange,
    Exchanges,
    call_measured,
    wait_measured,
)
from torchprof_hooks.kernel.attachments import (
    Attachment,
    Layer,
    Patch,
    attachments,
)
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.reading import Reading
from torchprof_hooks.kernel.torch_names import Function
from torchprof_hooks.kernel.torch_names.distributed import (
    collectives,
    functional_wait,
    group_maker,
    is_distributed,
    prepare_for_backward,
    wait_method,
    work_class,
)
from torchprof_hooks.profiles.names import WAITING_NAME

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData


class CommunicationPatches(Attachment):
    """Where a program calls ``torch.distributed``; its users are `Communication`s.

    torch has no hooks for that. So while there are users, this replaces what torch's
    functions call by functions that notify those of the running thread and then do
    the same. In a process without a group, it replaces only the function that would put
    the process into one.

    A collective that was begun with ``async_op=True`` is one call, wherever the program
    waits for its ``Work``. Waits for what C++ has begun have no collective's name.
    """

    def __init__(self) -> None:
        super().__init__()
        self._joining = Patch(group_maker, self._make_joining)
        self._patches: tuple[Patch, ...] = ()  # made when they are first needed
        #: Exchanges that the program has not waited for, by their ``Work``.
        self._begun: MutableMapping[Any, Exchange] = WeakIdKeyDictionary()

    def put_on(self) -> None:
        """Replace what communicates; without a group, what would make one."""
        if not is_distributed():
            self._joining.put_on()
            return
        if not self._patches:
            self._patches = tuple(self._all_patches())
        for patch in self._patches:
            patch.put_on()

    def take_off(self) -> bool:
        for patch in (self._joining, *self._patches):
            patch.take_off()
        return True

    def _all_patches(self) -> Iterator[Patch]:
        for name, place in collectives():
            yield Patch(place, partial(self._make_measured, name))
        yield Patch(wait_method(), self._make_wait)
        yield Patch(functional_wait(), self._make_functional_wait)
        yield Patch(prepare_for_backward(), self._make_prepare)

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
            here = self._exchanges_here()
            result, exchange = call_measured(here, name, original, args, kwargs)
            if isinstance(result, work_class()):
                self._begun[result] = exchange
            return result

        return communicate

    def _make_wait(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            call = partial(original, work, *args, **kwargs)
            if not layer.is_on:
                return call()
            exchange = self._begun.pop(work, None) or Exchange("wait")
            return wait_measured(self._exchanges_here(), exchange, call)

        return wait

    def _make_functional_wait(self, original: Function, layer: Layer) -> Function:
        def wait(*args: Any, **kwargs: Any) -> Any:
            call = partial(original, *args, **kwargs)
            if not layer.is_on:
                return call()
            return wait_measured(self._exchanges_here(), Exchange("wait_tensor"), call)

        return OperatorStandIn(original, wait)

    def _make_prepare(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def prepare_for_backward(*args: Any, **kwargs: Any) -> Any:
            for observer in self.users_here() if layer.is_on else ():
                observer.reading.tail = WAITING_NAME, "waiting"
            return original(*args, **kwargs)

        return prepare_for_backward

    def _exchanges_here(self) -> list[Exchanges]:
        return [observer.exchanges for observer in self.users_here()]


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


class Communication(Observer):
    """Has communication interrupt calls, and adds up what is exchanged.

    ``DistributedDataParallel`` sums up gradients while a backward pass runs, and waits
    at its end until that is done, in a callback of the engine's that no hook shows: if
    it was prepared for the pass, the pass's tail is that.
    """

    attachments = (communication_patches,)
    exchanges: Exchanges

    def follow(self, reading: Reading) -> None:
        super().follow(reading)
        self.exchanges = Exchanges(reading)

    def ended(self) -> None:
        self.reading.tail = None

    def tail_ended(self, duration_ns: int) -> None:
        self.reading.waited_ns += duration_ns

    def added_to(self, profile: ProfileData) -> ProfileData:
        return replace(profile, collectives=self.exchanges.read())
