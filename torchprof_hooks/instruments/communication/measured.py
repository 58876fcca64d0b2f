"""What a thread exchanges with other processes: its sums by kind and group, and the
calls that are measured for them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
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
    thread adds; any thread may read.

    waited_ns, bytes: how long it has waited so far, and how much it has exchanged, also
        in calls that are a part of another one.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = weakref.ref(reading)
        self.waited_ns = self.bytes = 0
        self._sums: dict[tuple[str, str, int], Collective] = {}

    def begin(self, collective: str, is_call: bool) -> Interruption | None:
        """Begin a call of a function of ``torch.distributed``, or a wait for what one
        has begun. None if it is a part of something else: of another such call, of
        waiting for gradients, or of loading data."""
        reading = self._reading()
        if reading is None or reading.site.phase in _WHOLE_PHASES:
            return None
        name = communication_name(collective)
        return reading.interrupt(name, "communication", is_call=is_call)

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
        reading = self._reading()
        if reading is not None:
            reading.waited_ns += call_ns + waiting_ns
        key = exchange[:3]
        new = Collective(*key, calls, bytes_, call_ns, waiting_ns, elapsed_ns)
        [self._sums[key]] = sum_of([self._sums.get(key, Collective(*key)), new])

    def read(self) -> Collectives:
        """All sums so far."""
        return sum_of(dict(self._sums).values())


class _Observed:
    """A call of something that communicates, as one observer sees it, from its begin.

    row: None if the call has none of its own there (see `Exchanges.begin`).
    """

    def __init__(self, exchanges: Exchanges) -> None:
        self.exchanges = exchanges
        self._waited_ns, self._bytes = exchanges.waited_ns, exchanges.bytes
        self.row: Interruption | None = None

    def called(self, exchange: Exchange, bytes_: int, call: _Call) -> None:
        """It is over. bytes_: of its tensors; 0: those of the calls inside count."""
        exchanges = self.exchanges
        waited_ns = exchanges.waited_ns - self._waited_ns
        bytes_ = bytes_ or exchanges.bytes - self._bytes
        exchanges.bytes = self._bytes + bytes_
        if self.row is not None:
            exchanges.add(
                exchange,
                calls=1,
                bytes_=bytes_,
                call_ns=call.took_ns - waited_ns,
                waiting_ns=waited_ns,
                elapsed_ns=0 if isinstance(call.result, work_class()) else call.took_ns,
            )

    def waited(self, exchange: Exchange, call: _Call) -> None:
        """It is over, and was a wait."""
        exchanges, elapsed_ns = self.exchanges, call.took_ns
        exchanges.waited_ns = self._waited_ns + elapsed_ns
        is_known = exchange.start_ns > 0
        if is_known:
            elapsed_ns += call.start_ns - exchange.start_ns
        if self.row is not None:
            exchanges.add(
                exchange,
                calls=int(not is_known),
                waiting_ns=call.took_ns,
                elapsed_ns=elapsed_ns,
            )


class _Call(NamedTuple):
    """A call of something that communicates, which is over."""

    result: Any
    start_ns: int
    took_ns: int


def _make(
    call: Function, observed: Sequence[_Observed], name: str, is_call: bool
) -> _Call:
    """Make a call. It has a row in each thread that is followed here, and is not in
    such a call already."""
    try:
        for one in observed:
            one.row = one.exchanges.begin(name, is_call)
        start_ns = perf_counter_ns()
        result = call()
        took_ns = perf_counter_ns() - start_ns
    except BaseException as error:
        for one in reversed(observed):
            if one.row is not None:
                one.row.fail()
        leave_out_our_frame(error)
        raise
    for one in reversed(observed):
        if one.row is not None:
            one.row.end()
    return _Call(result, start_ns, took_ns)


def call_measured(
    here: Sequence[Exchanges], name: str, original: Function, args: Any, kwargs: Any
) -> tuple[Any, Exchange]:
    """Call a function that communicates; return its result, and its exchange.

    If it calls others of its kind, their bytes count as its own, unless it has tensors
    itself; and their waiting time counts as its own.
    """
    exchange = Exchange(name)
    if is_dynamo_compiling() or is_tracing():
        return original(*args, **kwargs), exchange
    observed = [*map(_Observed, here)]
    call = _make(partial(original, *args, **kwargs), observed, name, True)
    bytes_ = data_bytes((*args, *kwargs.values(), call.result))
    if any(one.row is not None for one in observed):
        exchange = Exchange(name, *group_of(args, kwargs), call.start_ns)
    for one in observed:
        one.called(exchange, bytes_, call)
    return call.result, exchange


def wait_measured(
    here: Sequence[Exchanges], exchange: Exchange, original: Function, *args: Any
) -> Any:
    """Call a function that waits for an exchange; return its result. If nobody
    observed its begin, the wait counts as a call."""
    if is_dynamo_compiling() or is_tracing():
        return original(*args)
    observed, is_call = [*map(_Observed, here)], not exchange.start_ns
    call = _make(partial(original, *args), observed, exchange.name, is_call)
    for one in observed:
        one.waited(exchange, call)
    return call.result
