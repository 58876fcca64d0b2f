"""What a thread exchanges with other processes: its sums by kind and group, and who
measures it for the trackers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from torch.compiler import is_dynamo_compiling

from torchprof_hooks.kernel.attachments import leave_out_our_frame
from torchprof_hooks.kernel.interruptions import Interruption
from torchprof_hooks.kernel.reading import Reading
from torchprof_hooks.kernel.torch_names import Function
from torchprof_hooks.kernel.torch_names.compiler import is_tracing
from torchprof_hooks.kernel.torch_names.distributed import (
    data_bytes,
    group_of,
    work_class,
)
from torchprof_hooks.profiles.collectives import Collective, Collectives, sum_of
from torchprof_hooks.profiles.names import communication_name


class Exchange(NamedTuple):
    """A call of a function of ``torch.distributed``.

    name, group, group_size: see `Collective`.
    start_ns: when it began; 0 if nobody observed that.
    """

    name: str
    group: str = ""
    group_size: int = 0
    start_ns: int = 0


#: Phases of interruptions inside of which communication has no row of its own.
_WHOLE_PHASES: Final = ("data", "waiting", "communication")


class Exchanges:
    """The exchanges of a thread, which interrupt its calls, and their sums. Only that
    thread adds; any thread may read."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._sums: dict[tuple[str, str, int], Collective] = {}

    def begin(self, collective: str, is_call: bool) -> Interruption | None:
        """Begin a call of a function of ``torch.distributed``, or a wait for what one
        has begun. None if it is a part of something else: of another such call, of
        waiting for gradients, or of loading data."""
        if self._reading.site.phase in _WHOLE_PHASES:
            return None
        name = communication_name(collective)
        return self._reading.interrupt(name, "communication", is_call=is_call)

    def add(
        self,
        exchange: Exchange,
        *,
        calls: int = 0,
        bytes_: int = 0,
        call_ns: int = 0,
        waiting_ns: int = 0,
        elapsed_ns: int = 0,
    ) -> None:
        """Add these to the sums for the kind of `exchange`."""
        self._reading.waited_ns += call_ns + waiting_ns
        key = exchange[:3]
        new = Collective(*key, calls, bytes_, call_ns, waiting_ns, elapsed_ns)
        [self._sums[key]] = sum_of([self._sums.get(key, Collective(*key)), new])

    def read(self) -> Collectives:
        """All sums so far."""
        return sum_of(dict(self._sums).values())


class _Inside(threading.local):
    """How long a thread has waited in calls so far, and how much it has exchanged."""

    waited_ns = 0
    bytes = 0


_inside = _Inside()


class _Doing:
    """A call of something that communicates. It has a row of its own in each thread
    that is followed here, and is not in such a call already.

    start_ns, took_ns: of the call.
    """

    def __init__(self, here: Sequence[Exchanges], name: str, is_call: bool) -> None:
        self._here = here
        self._name = name
        self._is_call = is_call
        self._begun: list[tuple[Exchanges, Interruption]] = []
        self.start_ns = self.took_ns = 0

    def call(self, original: Function, args: Any, kwargs: Any) -> Any:
        """What `original` returns."""
        try:
            for exchanges in self._here:
                found = exchanges.begin(self._name, self._is_call)
                if found is not None:
                    self._begun.append((exchanges, found))
            self.start_ns = perf_counter_ns()
            result = original(*args, **kwargs)
            self.took_ns = perf_counter_ns() - self.start_ns
        except BaseException as error:
            for _, found in reversed(self._begun):
                found.fail()
            leave_out_our_frame(error)
            raise
        for _, found in reversed(self._begun):
            found.end()
        return result

    @property
    def is_outermost(self) -> bool:
        """Whether the call has a row of its own."""
        return bool(self._begun)

    def add(self, exchange: Exchange, **numbers: int) -> None:
        """Add how much the call exchanged, where it has a row."""
        for exchanges, _ in self._begun:
            exchanges.add(exchange, calls=int(self._is_call), **numbers)


def call_measured(
    here: Sequence[Exchanges], name: str, original: Function, args: Any, kwargs: Any
) -> tuple[Any, Exchange]:
    """Call a function that communicates; return its result, and its exchange.

    If it calls others of its kind, their bytes count as its own, unless it has tensors
    itself; and their waiting time counts as its own.
    """
    if is_dynamo_compiling() or is_tracing():
        return original(*args, **kwargs), Exchange(name)
    waited_ns, bytes_before = _inside.waited_ns, _inside.bytes
    doing = _Doing(here, name, is_call=True)
    result = doing.call(original, args, kwargs)
    bytes_ = data_bytes((*args, *kwargs.values(), result))
    bytes_ = bytes_ or _inside.bytes - bytes_before
    _inside.bytes = bytes_before + bytes_
    if not doing.is_outermost:
        return result, Exchange(name)
    exchange = Exchange(name, *group_of(args, kwargs), doing.start_ns)
    waited_ns = _inside.waited_ns - waited_ns
    doing.add(
        exchange,
        bytes_=bytes_,
        call_ns=doing.took_ns - waited_ns,
        waiting_ns=waited_ns,
        elapsed_ns=0 if isinstance(result, work_class()) else doing.took_ns,
    )
    return result, exchange


def wait_measured(
    here: Sequence[Exchanges], exchange: Exchange, original: Function, *args: Any
) -> Any:
    """Call a function that waits for an exchange; return its result. If nobody
    observed its begin, the wait counts as a call."""
    if is_dynamo_compiling() or is_tracing():
        return original(*args)
    waited_ns = _inside.waited_ns
    doing = _Doing(here, exchange.name, is_call=not exchange.start_ns)
    result = doing.call(original, args, {})
    _inside.waited_ns = waited_ns + doing.took_ns
    end_ns = doing.start_ns + doing.took_ns
    elapsed_ns = end_ns - (exchange.start_ns or doing.start_ns)
    doing.add(exchange, waiting_ns=doing.took_ns, elapsed_ns=elapsed_ns)
    return result
