"""What torch.compile does in a thread: compilations interrupt calls, and compiled code
is divided among modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import get_native_id
from time import perf_counter_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import torch

from torchprof_hooks.instruments.compiled.kernel_map import forget_maps, map_patches
from torchprof_hooks.instruments.compiled.places import Places, Placing
from torchprof_hooks.instruments.compiled.wrapper import (
    CHANGED,
    Mark,
    NotDividedError,
    WrapperFunction,
    functions_of,
)
from torchprof_hooks.kernel.attachments import (
    Attachment,
    Layer,
    Patch,
    attachments,
    leave_out_our_frame,
)
from torchprof_hooks.kernel.interruptions import Interruption
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.reading import Reading
from torchprof_hooks.kernel.torch_names import Function
from torchprof_hooks.kernel.torch_names.compiler import (
    compilation_context,
    is_compiled_module,
)
from torchprof_hooks.kernel.torch_names.inductor import (
    computes,
    inductor_entry,
    is_inductor_loaded,
    load_inductor,
    missing,
    wrappers,
)
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.names import COMPILING_NAME
from torchprof_hooks.profiles.trace.step_trace import GraphCall, GraphLaunches

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData

# Compilations


def _make_compiling(original: Function, layer: Layer) -> Function:
    @contextmanager
    def install_callbacks(*args: Any, **kwargs: Any) -> Iterator[None]:
        begun: list[Interruption] = []
        for observer in _compiling.users_here() if layer.is_on else ():
            if observer.reading.site.phase != "compiling":
                found = observer.reading.interrupt(COMPILING_NAME, "compiling")
                found.site.is_region = True
                begun.append(found)
        try:
            with original(*args, **kwargs):
                yield
        finally:
            if layer.is_on:
                attachments.renew(marks)  # on what was compiled
            for found in reversed(begun):
                found.end()

    return install_callbacks


def _make_entry(original: Function, layer: Layer) -> Function:
    def __call__(*args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if not layer.is_on:
            return original(*args, **kwargs)
        load_inductor()
        for each in (_compiling, maps):  # what they go on may not have been there yet
            attachments.renew(each)
        try:
            return original(*args, **kwargs)
        finally:
            attachments.renew(marks)

    return __call__


#: The context in which torch.compile compiles something, in the thread that waits for
#: it.
_compiling: Final = Patch(compilation_context, _make_compiling)


# Compiled code


class Maps(Attachment):
    """What asks, while torch compiles, whose kernels are.

    As most programs compile nothing, it is on one function of torch's until that is
    called, or if there is no compiled code yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self._entry = Patch(inductor_entry, _make_entry)

    def put_on(self) -> None:
        self._entry.put_on()
        if is_inductor_loaded() and not missing():
            for patch in map_patches:
                patch.put_on()

    def take_off(self) -> bool:
        for patch in (self._entry, *map_patches):
            patch.take_off()
        return True


class Marks(Attachment):
    """What is put into compiled code, to notice where its kernels end. Nothing is
    compiled again; its users are `Compilations`."""

    def __init__(self) -> None:
        super().__init__()
        self._met: dict[int, tuple[ModuleType, list[WrapperFunction]]] = {}
        self._reasons: dict[int, str] = {}

    def put_on(self) -> None:
        if not is_inductor_loaded() or missing():
            return
        self._meet({id(each): each for each in wrappers()})
        forget_maps()

    def _meet(self, loaded: Mapping[int, ModuleType]) -> None:
        """Mark wrappers that are loaded, and forget others."""
        for key in self._met.keys() - loaded.keys():
            self._reasons.pop(key, None)
            for function in self._met.pop(key)[1]:
                function.forget()
        for key, module in loaded.items():
            if key not in self._met:
                self._met[key] = module, self._functions_of(module)
            for function in self._met[key][1]:
                if not function.put_on():
                    self._reasons[key] = CHANGED

    def take_off(self) -> bool:
        for _, functions in [*self._met.values()]:
            for function in functions:
                function.take_off()
        return True

    def reasons(self) -> list[str]:
        """Why wrappers could not be marked, each reason once."""
        return sorted({*self._reasons.values()})

    def _functions_of(self, module: ModuleType) -> list[WrapperFunction]:
        try:
            return functions_of(module, _run)
        except NotDividedError as error:
            self._reasons[id(module)] = str(error)
            return []


def _run(function: WrapperFunction, *args: Any) -> Any:
    """Run a function of a wrapper."""
    parts = [_Parts(each, function) for each in marks.users_here()]
    mark = _mark_of(parts)
    function.runs += 1
    began_ns = perf_counter_ns()
    runs = [each.runs for each in function.partitions]
    try:
        mark(-1)
        result = function.marked(*args, mark)
        if runs:
            replayed = runs == [each.runs for each in function.partitions]
            for part in parts:
                part.observer.launched(part.base, function, began_ns, replayed)
        return result
    except BaseException as error:
        leave_out_our_frame(error)
        raise
    finally:
        for each in reversed(parts):
            each.end()


def _mark_of(parts: list[_Parts]) -> Mark:
    if len(parts) == 1:  # as usual
        return parts[0].mark

    def mark(number: int) -> None:
        for each in parts:
            each.mark(number)

    return mark


class _Parts:
    """The kernels of a function that runs, as one thread is followed through them: what
    comes before a kernel, such as allocations for it, is a part of it."""

    __slots__ = ("_now", "_number", "_places", "_reading", "base", "observer")

    def __init__(self, observer: Compilations, function: WrapperFunction) -> None:
        self.observer, self._reading = observer, observer.reading
        self.base = self._now = self._reading.site
        self._places = observer.places(self.base, function)
        self._number = -1

    def mark(self, number: int) -> None:
        """The kernel of this number has ended (-1: none was before): the next one
        begins."""
        self._number = number + 1
        now, coming, base = self._now, self._places.sites[number + 1], self.base
        if coming is now or self._reading.site is not now:
            return  # the second: measuring has ended, or begun anew
        self._now = coming
        self._reading.move(
            None if now is base else now, None if coming is base else coming
        )

    def end(self) -> None:
        """The code has returned, or raised."""
        reading, now = self._reading, self._now
        if now is not self.base and reading.site is now:
            reading.move(now, None)
        begun = self._places.begun[: self._number + 1]
        reading.end_parts([site for sites in begun for site in sites], self.base)


maps: Final = Maps()
marks: Final = Marks()

#: What is said where nobody knows whose kernels are.
HOW: Final = (
    "the modules of kernels in compiled code from a cache of torch's are not known: "
    "run once with TORCHINDUCTOR_FX_GRAPH_CACHE=0 TORCHINDUCTOR_AUTOGRAD_CACHE=0"
)
#: What is said where CUDA graphs do what the code would.
REPLAYED: Final = (
    "what CUDA graphs replay is time of the compiled module, but for kernels in the "
    "traced step of kernels=True"
)


#: What CUDA graphs may run in place of it, and where its kernels are booked.
_Partition = tuple[WrapperFunction, Places]


class Compilations(Observer):
    """Has compilations interrupt the calls that wait for them.

    divides: whether it also divides the time of compiled code among modules.
    in_trace: whether it also keeps which CUDA graphs it has launched.
    """

    def __init__(self, divides: bool = False, in_trace: bool = False) -> None:
        self.attachments = (_compiling,)
        if divides:
            self.attachments = (_compiling, maps, marks)
        #: By the call, for each function of wrappers that torch has not forgotten.
        self._places = WeakKeyDictionary[WrapperFunction, dict[Site, Places]]()
        #: Calls of which a part was booked on kernels.
        self._divided = set[Site]()
        self._without_map = self._has_replays = False
        self._in_trace = in_trace
        self._launches: list[tuple[GraphLaunches, list[_Partition]]] = []

    def new_call(self, site: Site, module: torch.nn.Module) -> None:
        """The program may have begun to use torch.compile."""
        attachments.renew(_compiling)

    def places(self, base: Site, function: WrapperFunction) -> Places:
        """Where kernels of a function are booked that runs in the call at `base`."""
        known = self._places.get(function)
        if known is None:
            known = self._places[function] = {}
        found = known.get(base)
        if found is None:
            with self.reading.our_work():
                found = Placing(self.reading, base, function).find()
            known[base] = found
            self._divided.add(base)
            self._without_map |= function.known is None
        return found

    def launched(
        self, base: Site, function: WrapperFunction, began_ns: int, replayed: bool
    ) -> None:
        """A function with partitions has run. replayed: without any of these."""
        self._has_replays |= replayed
        if self._in_trace:
            found = GraphLaunches(get_native_id(), began_ns, perf_counter_ns())
            parts = [(each, self.places(base, each)) for each in function.partitions]
            self._launches.append((found, parts))

    def take_launches(self) -> list[GraphLaunches]:
        """What CUDA graphs that compiled code has launched are known to run."""
        launches, self._launches = self._launches, []
        return [
            each._replace(graphs=tuple(map(_graph_of, parts)))
            for each, parts in launches
        ]

    def added_to(self, profile: ProfileData) -> ProfileData:
        """Say what is not divided, and why."""
        if marks not in self.attachments:
            return profile
        said = [*_undivided(self.reading, self._divided)]
        if self._without_map:
            said.append(HOW)
        if self._has_replays:
            said.append(REPLAYED)
        lines = sorted({*profile.not_measured, *said})
        return replace(profile, not_measured=tuple(lines))


def _graph_of(partition: _Partition) -> tuple[GraphCall, ...]:
    function, places = partition
    if not function.in_order:
        return ()
    names = [each.name for each in function.kernels]
    return tuple(
        GraphCall(triton, bool(triton) or computes(name), site.path, site.phase)
        for name, site in zip(names, places.sites, strict=False)
        for triton in [function.triton.get(name, "")]
    )


def _undivided(reading: Reading, bases: Iterable[Site]) -> Iterator[str]:
    """Compiled modules of which neither a kernel nor a module inside was seen."""
    calls, divided = reading.calls(), set[Site]()
    around = (each.caller for each in [*reading.sites] if each.module is not None)
    for base in (*bases, *around):
        site = base
        while site not in divided:
            divided.add(site)
            site = site.caller
    found = dict[str, bool]()
    for site in reading.sites[: len(calls)]:
        module = site.living_module()
        if module is not None and is_compiled_module(module) and calls[site.code]:
            found[site.name] = found.get(site.name, False) or site in divided
    names = [name for name, is_divided in found.items() if not is_divided]
    if names:
        lacks = missing()
        why = [f"torch has no {lacks}"] if lacks else marks.reasons()
        reason = "; ".join(why) or (
            "it was not compiled by Inductor to Python, or CUDA graphs replay it"
        )
        yield f"not divided among modules: {', '.join(names[:3])} [compiled]: {reason}"
