"""A stopwatch around the phases of a training program, which knows nothing of the
package: the truth that reports are compared with.

Python imports it before the program (`sitecustomize` calls `start`), which then runs as
it does alone. Started by another script, the program's frames lay on top of others.
Python keeps frames in blocks of 16 kB, and where a call of a hot loop falls on the end
of one, each takes a new block from the system and gives it back: loading data took 9 %
longer for that. The clock itself is in C (`phase_clock.c`), for the same reason: what
it takes must be little, also where the program has pushed it out of the caches.

Forward is the time in outermost calls of modules, backward that in calls of the
autograd engine, optimizer that in steps without their closures, data that in asking an
iterator over a DataLoader for a batch, garbage that in full collections; what lies
inside of another phase counts there and nowhere else.
Times are those of the main thread, and are written when the script ends, with what all
took since torch was imported.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import subprocess
import sysconfig
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import dataloader

SOURCE: Final = Path(__file__).with_name("phase_clock.c")
PHASES: Final = ("forward", "backward", "optimizer", "closure", "data", "garbage")
_CALLS: Final = 100

Function = Callable[..., Any]


def build(folder: Path) -> None:
    """Compile its clock for this Python, for processes that have `folder` in their
    path. Raises `CalledProcessError` where that fails."""
    built = folder / f"phase_clock{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_path("include")
    options = ["-O2", "-shared", "-fPIC", f"-I{include}"]
    subprocess.run(["cc", *options, str(SOURCE), "-o", str(built)], check=True)


class Own(NamedTuple):
    """Nanoseconds that the stopwatch adds to the time of a phase: by a call that is a
    part of it, and by one that opens it."""

    passing_ns: float
    opening_ns: float


class Stopwatch:
    """Time by phase. Phases inside of phases interrupt them. A process has one."""

    def __init__(self) -> None:
        self._clock: Any = import_module("phase_clock")  # where `build` put it

    def around(
        self, phase: str, function: Function, inside: tuple[str, ...] = ()
    ) -> Function:
        """`function`, with its time booked on `phase`, unless the innermost phase that
        is open is one of `inside`, to which it then belongs."""
        within = sum(1 << PHASES.index(each) for each in {phase, *inside})
        timed = self._clock.around(function, PHASES.index(phase), within)
        functools.update_wrapper(timed, function)
        return timed  # type: ignore[no-any-return]

    def around_collections(self, moment: str, about: dict[str, Any]) -> None:
        """Python looks through all objects for garbage, or has."""
        if about["generation"] == 2:
            is_start = moment == "start"
            change = self._clock.open_phase if is_start else self._clock.close_phase
            change(PHASES.index("garbage"))

    def spent_ns(self, phase: str) -> int:
        """In that phase until its last end."""
        spent: int = self._clock.totals(PHASES.index(phase))[0]
        return spent

    def clear(self) -> None:
        """Forget what was timed."""
        self._clock.clear()

    def without_own(self, own: Own) -> dict[str, float]:
        """Nanoseconds of the phases without what the stopwatch itself took in them."""
        found = {}
        for place, phase in enumerate(PHASES):
            spent_ns, passed, opened = self._clock.totals(place)
            found[phase] = spent_ns - passed * own.passing_ns - opened * own.opening_ns
        return found


def watch_modules(watch: Stopwatch) -> Own:
    """Put it around calls of modules. Returns what this adds to them."""
    module: Any = torch.nn.Module
    alone_ns = _call_ns()
    # A module called while a pass runs is computed again: a part of backward here.
    inside = ("backward", "data")
    module.__call__ = watch.around("forward", module.__call__, inside)
    watched_ns = watch.around("forward", _call_ns)()
    watch.clear()
    inside_ns = _call_ns(lambda: watch.spent_ns("forward"))
    watch.clear()
    return Own(max(watched_ns - alone_ns, 0.0), max(inside_ns - alone_ns, 0.0))


def _call_ns(clock_ns: Callable[[], int] = perf_counter_ns) -> float:
    """How long the call of a module takes that does nothing."""
    module, times_ns = torch.nn.Identity(), []
    for _ in range(_CALLS):
        start_ns = clock_ns()
        for _ in range(_CALLS):
            module(None)
        times_ns.append((clock_ns() - start_ns) / _CALLS)
    return median(times_ns)


def install(watch: Stopwatch) -> None:
    """Put it around what else each program goes through."""
    autograd: Any = torch.autograd
    autograd.backward = watch.around("backward", autograd.backward, ("data",))
    autograd.grad = watch.around("backward", autograd.grad, ("data",))
    optimizer: Any = torch.optim.Optimizer
    wrap = optimizer.profile_hook_step
    optimizer.profile_hook_step = staticmethod(
        lambda step: wrap(_around_step(watch, step))
    )
    for kind in _optimizers(torch.optim.Optimizer):
        if "step" in vars(kind) and not hasattr(kind.step, "hooked"):
            kind.step = _around_step(watch, kind.step)
    gc.callbacks.append(watch.around_collections)
    iterator: Any = dataloader._BaseDataLoaderIter
    iterator.__next__ = watch.around("data", iterator.__next__)


def _around_step(watch: Stopwatch, step: Function) -> Function:
    """A step of an optimizer, without the closure that it is given: that is the
    program's."""
    timed = watch.around("optimizer", step)

    @functools.wraps(step)
    def with_closure(self: Any, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
        if closure is not None:
            closure = watch.around("closure", closure)
        elif not args:  # not all of them take one
            return timed(self, **kwargs)
        return timed(self, closure, *args, **kwargs)

    return with_closure


def _optimizers(kind: type[Any]) -> list[type[Any]]:
    below = kind.__subclasses__()
    return below + [deeper for each in below for deeper in _optimizers(each)]


def start(result: Path) -> None:
    """Watch this process, and write the times to a file when it ends."""
    watch = Stopwatch()
    own = watch_modules(watch)
    install(watch)
    began_ns = perf_counter_ns()

    def write() -> None:
        wall_ns = perf_counter_ns() - began_ns
        result.write_text(json.dumps({**watch.without_own(own), "wall": wall_ns}))

    atexit.register(write)
