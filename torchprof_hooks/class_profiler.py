"""`@profiled`: a report for a class of modules when the program ends."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TextIO, TypeVar, overload

import torch

from torchprof_hooks.documents.render.units import check_unit
from torchprof_hooks.hooks.measuring import Settings
from torchprof_hooks.hooks.results import Rates, Saving
from torchprof_hooks.kernel.interception import Subscription
from torchprof_hooks.kernel.subscriptions import show_modules
from torchprof_hooks.kernel.torch_names.autograd import current_graph_task
from torchprof_hooks.measure.signals import interrupted_exit
from torchprof_hooks.profiler import Profiler
from torchprof_hooks.profiles.names import TimeUnit
from torchprof_hooks.profiles.options import check_file, print_to

Class = TypeVar("Class", bound=type[torch.nn.Module])

#: Attribute of a decorated class that holds its `Profiler`.
ATTRIBUTE = "__profiler__"


class _Start(Subscription):
    """Has a profiler measure each thread from the first call of an instance on, until
    the thread ends; and prints its report at exit.

    unit, file: of the report.
    """

    watches = True

    def __init__(self, cls: type[torch.nn.Module]) -> None:
        self.unit: TimeUnit = "auto"
        self.file: TextIO | None = None
        self.profiler = Profiler(Settings(of_class=cls), Saving(), Rates())
        self._cls, self._pid = cls, os.getpid()
        self._local = threading.local()
        show_modules(self)
        atexit.register(self._report)
        interrupted_exit.registered()

    def watch(self, module: torch.nn.Module, args: Any) -> None:
        if hasattr(self._local, "is_measured") or not isinstance(module, self._cls):
            return
        if current_graph_task() == -1:  # threads of the engine work for others
            self._local.is_measured = True
            self.profiler.start()

    def _report(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork: the parent reports what was measured before the fork
        with interrupted_exit.uninterrupted():
            profile = self.profiler.profile
            if profile.is_empty and multiprocessing.parent_process() is not None:
                return  # a worker that only imports the class: it loads data, say
            # A unit is for tables, so it asks for them.
            report = profile.report(full=self.unit != "auto", unit=self.unit)
            print_to(self.file, f"{self._cls.__qualname__}\n{report}")


_starts: Final[dict[type[torch.nn.Module], _Start]] = {}


@overload
def profiled(cls: Class) -> Class: ...
@overload
def profiled(
    *, unit: TimeUnit = ..., file: TextIO | None = ...
) -> Callable[[Class], Class]: ...
def profiled(
    cls: Class | None = None,
    *,
    unit: TimeUnit = "auto",
    file: TextIO | None = None,
) -> Class | Callable[[Class], Class]:
    """Class decorator: measure all instances, and print a report at exit.

    A `Profiler` (``cls.__profiler__``) measures each thread from its first call of an
    instance on. Of modules, only instances of the class and of its subclasses count,
    those of each class under its name, and the modules inside of them. The report comes
    when the interpreter ends, also after an exception. A process that
    ``multiprocessing`` has started prints one only if it calls an instance. If a
    class is decorated again, the last options count.

    Args:
        cls: a class derived from ``nn.Module``.
        unit: as for `Profiler.print_report`; with any but "auto", tables are printed.
        file: where the report goes; standard error by default.

    Raises:
        TypeError: `cls` is no such class, or `file` is not a file open for text.
        ValueError: `unit` is unknown.

    Example:
        >>> @torchprof_hooks.profiled
        ... class Block(nn.Module): ...

        At exit this prints::

            Block
            torchprof_hooks: Block, 2.00sec wall
            Hottest module: Block.fc, 72.0 %: Linear, forward 22.5 %, backward ...
            ...
            module        calls  forward  backward    total     %  own %
            Block            20  0.50sec   1.00sec  1.50sec  75.0    3.0
              fc: Linear     20  0.45sec   0.99sec  1.44sec  72.0   72.0  <- hottest
    """
    if cls is None:
        return partial(profiled, unit=unit, file=file)
    if not (isinstance(cls, type) and issubclass(cls, torch.nn.Module)):
        raise TypeError(f"cls must be a class derived from nn.Module, not {cls!r}")
    check_unit(unit)
    check_file("file", file)
    if cls not in _starts:
        _starts[cls] = _Start(cls)
        setattr(cls, ATTRIBUTE, _starts[cls].profiler)
    _starts[cls].unit, _starts[cls].file = unit, file
    return cls
