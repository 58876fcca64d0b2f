"""Who holds the memory of the CPU, or of a device, and what it turns out to be:
parameters, buffers, gradients, states of optimizers, and what forward keeps for
backward.

The native core knows which call took each block (native/meters/ledger.h). What a block
is, only shows later: here, by the tensors that models and optimizers have.
"""

from __future__ import annotations

import weakref
from _thread import get_ident
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from torchprof_hooks.instruments.memory.meter import MemoryMeter, observed_allocators
from torchprof_hooks.instruments.memory.steps import (
    Growth,
    Holder,
    StepRecorder,
)
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.reading import Reading
from torchprof_hooks.kernel.torch_names.tensors import (
    storages_of,
    tensors_in,
    unnoticed,
)
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.memory import (
    MEMORY_KINDS,
    HeldMemory,
    MemoryFailure,
    MemoryKind,
    MemorySummary,
    growing_most,
)
from torchprof_hooks.profiles.names import (
    BACKWARD_NAME,
    OUTSIDE_NAME,
    Phase,
    optimizer_name,
)

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData

#: Of so many steps, the last ones, the peaks are kept.
_STEPS_KEPT: Final = 8
_KIND: Final = {kind: number for number, kind in enumerate(MEMORY_KINDS)}
#: See `Ledger::settle`.
_OUTSIDE: Final = 254  # a part of forward, if forward has begun
_UNKNOWN: Final = 255

#: What blocks that are still in use turn out to be at some moments, by the phase of the
#: call that took them; of other phases, see `_Turns`.
_Phases = dict[Phase, int]
_BACKWARD_BEGINS: Final[_Phases] = {
    "forward": _KIND["activation"],
    "recompute": _KIND["activation"],
    "outside": _OUTSIDE,
    "backward": _UNKNOWN,
}
_BACKWARD_ENDS: Final[_Phases] = {"backward": _KIND["gradient"]}
_OPTIMIZER_ENDS: Final[_Phases] = {"optimizer": _KIND["optimizer state"]}
#: The same, of what nothing was known: in the middle of a step; and when it was freed
#: before the next backward began.
_IF_RUNNING: Final[dict[Phase, MemoryKind]] = {
    "forward": "activation",
    "recompute": "activation",
    "outside": "other",
}
_IF_GONE: Final[dict[Phase, MemoryKind]] = {"recompute": "activation"}
#: Classes of the user's own may have other methods of these names.
_Module: Final = torch.nn.Module


def _phase_of(site: Site) -> Phase:
    """The phase of what is made at a site: a function that is called outside of modules
    may make a batch, or what backward needs."""
    is_outside = site.phase == "forward" and site.enclosing.phase == "outside"
    return "outside" if is_outside else site.phase


class _Turns:
    """What blocks turn out to be at one moment, by the code of the call's site."""

    def __init__(self, sites: list[Site], phases: _Phases, others: int) -> None:
        self._sites = sites
        self._phases = phases
        self._others = others
        self._kinds = bytearray()

    def kinds(self) -> bytearray:
        """A byte for each site."""
        kinds = self._kinds
        for site in self._sites[len(kinds) :]:
            kinds.append(self._phases.get(_phase_of(site), self._others))
        return kinds


#: What is no call, or the calls of a module: its path, and the phase that it is told
#: with.
_Owner = tuple[tuple[str, ...], Phase]


class _Modules:
    """Whose calls are those at each site: also those of functions are a module's."""

    def __init__(self, sites: list[Site]) -> None:
        self._sites = sites
        self._around: dict[tuple[str, ...], tuple[str, ...]] = {}  # functions
        self._owners: list[_Owner] = []

    def owners(self) -> list[_Owner]:
        """The owner for each site."""
        self._owners += map(self._owner, self._sites[len(self._owners) :])
        return self._owners

    def _owner(self, site: Site) -> _Owner:
        path, phase = site.path, site.phase
        if site.function is not None:
            if phase != "backward":
                path, phase = site.enclosing.path, site.enclosing.phase
                self._around[site.path] = path
            else:  # called from the pass, but of the path of its forward
                path = self._around.get(path, path)
        outside = BACKWARD_NAME if phase == "backward" else OUTSIDE_NAME
        return path or (outside,), phase


#: The storage of a tensor, its kind, the code of an owner, and whether it is owned by
#: that also if the call that took it is known; and the tensor, which is not to be freed
#: by another thread meanwhile.
_Tensor = tuple[int, int, int, bool, torch.Tensor]


class MemoryOwners(Observer):
    """Tells the ledger of one thread what its blocks are.

    What is still in use when backward begins was made for it; what is left when it has
    ended, are gradients; and what is left of an optimizer's step is its state. Models
    and optimizers may have been there before: when they are first met, their tensors
    count as if they had been taken at the begin. Later, tensors are looked at again if
    more memory was in use since than ever before (a model may have got others). What is
    known of a block holds for the moment of the peak, too.

    meter: what counts the memory. Of a device, the core observes no blocks while
        nothing is measured: what is in use when it goes on is nobody's, until it is met
        again.
    """

    def __init__(self, meter: MemoryMeter) -> None:
        self._meter, self._log = meter, meter.log
        self.attachments = () if meter.counts_tensors else (observed_allocators,)
        self._growth = Growth()
        self._owners: list[_Owner] = []
        self._codes: dict[_Owner, int] = {}
        # What has been met, with its path; by id, as it may have its own `__eq__`.
        self._modules: dict[int, tuple[weakref.ref[torch.nn.Module], Any]] = {}
        self._optimizers: dict[int, tuple[weakref.ref[Any], Any]] = {}
        self._step_peaks: deque[int] = deque(maxlen=_STEPS_KEPT)
        self._known_epoch = 0
        self._thread = get_ident()

    def follow(self, reading: Reading) -> None:
        super().follow(reading)
        sites = self._sites = reading.sites
        self._recorder = StepRecorder(self._log, reading)
        self._at_begin = _Turns(sites, _BACKWARD_BEGINS, _KIND["other"])
        self._at_end = _Turns(sites, _BACKWARD_ENDS, _UNKNOWN)
        self._after_step = _Turns(sites, _OPTIMIZER_ENDS, _UNKNOWN)
        self._of_modules = _Modules(sites)

    def began(self) -> None:
        self._log.keep_owners(True)
        self._known_epoch = 0  # that of no moment: there may be others than before
        self.look_again()
        self._recorder.begin()

    def ended(self) -> None:
        """Blocks that are taken from now on are nobody's."""
        self._recorder.drop()
        if self.attachments and get_ident() == self._thread:
            self.look_again()
        self._log.keep_owners(False)

    # What is met

    def met(self, site: Site, module: torch.nn.Module) -> None:
        """An outermost module is looked at."""
        known = self._modules.get(id(module))
        if site.is_entry and (known is None or known[0]() is not module):
            self._modules[id(module)] = weakref.ref(module), site.path
            with unnoticed():
                self._log.turned_out(_listed(self._of_module(module, site.path)))

    def optimizer_begins(self, optimizer: Any) -> None:
        known = self._optimizers.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            path = (optimizer_name(type(optimizer).__name__),)
            self._optimizers[id(optimizer)] = weakref.ref(optimizer), path
            with unnoticed():
                self._log.turned_out(_listed(self._of_optimizer(optimizer, path)))

    # What blocks turn out to be

    def pass_begins(self) -> None:
        self._log.settle(self._at_begin.kinds())
        self.look_again()

    def pass_ended(self) -> None:
        with self.reading.our_work():
            self._log.settle(self._at_end.kinds())

    def optimizer_ended(self, optimizer: Any, ended_ns: int) -> None:
        with self.reading.our_work():
            self._log.settle(self._after_step.kinds())

    def step_ended(self, number: int) -> None:
        peak_bytes = self._log.step_ended()
        self._growth.step_ended(number, self._in_use)
        self._step_peaks.append(peak_bytes)
        self._recorder.end(peak_bytes)

    def look_again(self) -> None:
        """Look what models and optimizers have, if there was a new peak since."""
        if self._log.epoch != self._known_epoch:
            with unnoticed():
                self._log.turned_out(self._all())
            self._known_epoch = self._log.epoch

    def _all(self) -> list[_Tensor]:
        found: list[_Tensor] = []
        for met, of in (
            (self._modules, self._of_module),
            (self._optimizers, self._of_optimizer),
        ):
            for key, (find, path) in [*met.items()]:
                living = find()
                if living is None:
                    met.pop(key, None)
                else:
                    found += _listed(of(living, path))
        return found

    # What there is

    def _of_module(
        self, module: torch.nn.Module, path: tuple[str, ...]
    ) -> Iterator[_Tensor]:
        for name, inner in _Module.named_modules(module):
            owner = path
            for part in name.split(".") if name else ():
                owner = (*owner, f"{owner[-1]}.{part}")
            for _, parameter in _Module.named_parameters(inner, recurse=False):
                yield from self._tensor(parameter, "parameter", owner, "outside")
                yield from self._gradient(parameter, owner)
            for _, buffer in _Module.named_buffers(inner, recurse=False):
                yield from self._tensor(buffer, "buffer", owner, "outside")

    def _of_optimizer(self, optimizer: Any, path: tuple[str, ...]) -> Iterator[_Tensor]:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield from self._gradient(parameter, path)
        for state in [*optimizer.state.values()]:
            for value in tensors_in([state]):
                yield from self._tensor(value, "optimizer state", path, "optimizer")

    def _gradient(self, parameter: Any, owner: tuple[str, ...]) -> Iterator[_Tensor]:
        # torch warns where the gradient of something else is asked for.
        if issubclass(type(parameter), torch.Tensor) and parameter.is_leaf:
            yield from self._tensor(
                parameter.grad, "gradient", owner, "backward", moves=False
            )

    def _tensor(
        self,
        tensor: Any,
        kind: MemoryKind,
        path: tuple[str, ...],
        phase: Phase,
        moves: bool = True,
    ) -> Iterator[_Tensor]:
        if not issubclass(type(tensor), torch.Tensor):
            return
        owner = path, phase
        code = self._codes.get(owner)
        if code is None:
            self._owners.append(owner)
            code = self._codes[owner] = -len(self._owners)
        for storage in storages_of(tensor):
            yield storage, _KIND[kind], code, moves, tensor

    # Reading

    def added_to(self, profile: ProfileData) -> ProfileData:
        """The profile, with the peak, and who had what then."""
        if self._log.is_complete:
            return replace(profile, memory=self._summary())
        source = self._meter.name
        unknown = (
            f"not measured: who holds the memory of {source}: its allocator has not "
            "reported each block"
        )
        blamed = self._sites[self._log.blamed]
        return replace(
            profile,
            memory=MemorySummary(
                source,
                int(self._log.high_water_bytes),
                blamed.path or (OUTSIDE_NAME,),
                blamed.phase,
            ),
            not_measured=(*profile.not_measured, unknown),
        )

    def _summary(self) -> MemorySummary:
        if get_ident() == self._thread:
            self.look_again()
        path, phase = self._owner(self._log.peak_code)
        peak_bytes, failure = int(self._log.peak_bytes), self._failure()
        has_failed_there = failure is not None and peak_bytes > self._recorder.highest
        return MemorySummary(
            source=self._meter.name,
            peak_bytes=peak_bytes,
            peak_path=path,
            peak_phase=phase,
            at_peak=self._held(self._log.holdings(True), has_failed_there),
            step_peaks=tuple(self._step_peaks),
            step=self._recorder.read(),
            failure=failure,
            growing=growing_most(self._growth.growing()),
        )

    def _in_use(self) -> Counter[Holder]:
        found: Counter[Holder] = Counter()
        of_modules = self._of_modules.owners()
        for code, number, size in self._log.holdings(False):
            path, phase = of_modules[code] if code >= 0 else self._owner(code)
            found[path, phase, _kind(number, phase, _IF_RUNNING)] += size
        return found

    def _failure(self) -> MemoryFailure | None:
        if self._log.failure is None:
            return None
        requested_bytes, code, holdings = self._log.failure
        path, phase = self._owner(code)
        held = self._held(holdings, is_running=True)
        return MemoryFailure(requested_bytes, path, phase, held)

    def _held(
        self, holdings: list[tuple[int, int, int]], is_running: bool = False
    ) -> tuple[HeldMemory, ...]:
        """is_running: whether that is in the middle of a step: what forward has made is
        not known to be temporary."""
        found: Counter[Holder] = Counter()
        for code, number, size in holdings:
            path, phase = self._owner(code)
            made_in = _phase_of(self._sites[code]) if code >= 0 else phase
            kind = _kind(number, made_in, _IF_RUNNING if is_running else _IF_GONE)
            found[path, phase, kind] += size
        order = sorted(found.items(), key=lambda held: (-held[1], held[0]))
        return tuple(HeldMemory(*key, size) for key, size in order if size)

    def _owner(self, code: int) -> _Owner:
        if code < 0:
            return self._owners[-code - 1]
        site = self._sites[code]
        return site.path or (OUTSIDE_NAME,), site.phase


def _kind(number: int, phase: Phase, if_unknown: dict[Phase, MemoryKind]) -> MemoryKind:
    kind = MEMORY_KINDS[number]
    return if_unknown.get(phase, kind) if kind == "temporary" else kind


def _listed(tensors: Iterator[_Tensor]) -> list[_Tensor]:
    """What could be found. Models and optimizers may be of any class: that one is not
    what torch's are is no reason to fail."""
    found: list[_Tensor] = []
    with suppress(AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        found.extend(tensors)
    return found
