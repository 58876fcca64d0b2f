"""The tensors that models and optimizers have, and what those are."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import torch

from torchprof_hooks.kernel.torch_names.tensors import (
    storages_of,
    tensors_in,
    unnoticed,
)
from torchprof_hooks.profiles.memory import MEMORY_KINDS, MemoryKind
from torchprof_hooks.profiles.names import Phase, optimizer_name

KIND: Final = {kind: number for number, kind in enumerate(MEMORY_KINDS)}
#: Classes of the user's own may have other methods of these names.
_Module: Final = torch.nn.Module

Path = tuple[str, ...]
#: What is no call, or the calls of a module: its path, and the phase that it is told
#: with.
Owner = tuple[Path, Phase]
#: The storage of a tensor, its kind, the code of an owner, and whether it is owned by
#: that also if the call that took it is known; and the tensor, which is not to be freed
#: by another thread meanwhile.
_Tensor = tuple[int, int, int, bool, torch.Tensor]


class KnownTensors:
    """Tells the ledger of one thread of the tensors of what has been met.

    log: the core's meter of memory, which has the ledger.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._owners: list[Owner] = []
        self._codes: dict[Owner, int] = {}
        # With its path; by id, as it may have its own `__eq__`.
        self._modules: dict[int, tuple[weakref.ref[Any], Path]] = {}
        self._optimizers: dict[int, tuple[weakref.ref[Any], Path]] = {}
        self._known_epoch = 0

    def owner(self, code: int) -> Owner:
        """The owner of this code, which is below 0: those of sites are not."""
        return self._owners[-code - 1]

    def module_met(self, module: torch.nn.Module, path: Path) -> None:
        """A call of an outermost module is about to begin."""
        known = self._modules.get(id(module))
        if known is None or known[0]() is not module:
            self._modules[id(module)] = weakref.ref(module), path
            self._tell(self._of_module(module, path))

    def optimizer_met(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        known = self._optimizers.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            path = (optimizer_name(type(optimizer).__name__),)
            self._optimizers[id(optimizer)] = weakref.ref(optimizer), path
            self._tell(self._of_optimizer(optimizer, path))

    def _tell(self, tensors: Iterator[_Tensor]) -> None:
        with unnoticed():
            self._log.turned_out(_listed(tensors))

    def look_again(self, anew: bool = False) -> None:
        """Look what models and optimizers have, if there was a new peak since, or if
        there may be others than before."""
        if anew or self._log.epoch != self._known_epoch:
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

    def _of_module(self, module: torch.nn.Module, path: Path) -> Iterator[_Tensor]:
        for name, inner in _Module.named_modules(module):
            owner = path
            for part in name.split(".") if name else ():
                owner = (*owner, f"{owner[-1]}.{part}")
            for _, parameter in _Module.named_parameters(inner, recurse=False):
                yield from self._tensor(parameter, "parameter", owner, "outside")
                yield from self._gradient(parameter, owner)
            for _, buffer in _Module.named_buffers(inner, recurse=False):
                yield from self._tensor(buffer, "buffer", owner, "outside")

    def _of_optimizer(self, optimizer: Any, path: Path) -> Iterator[_Tensor]:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield from self._gradient(parameter, path)
        for state in [*optimizer.state.values()]:
            for value in tensors_in([state]):
                yield from self._tensor(value, "optimizer state", path, "optimizer")

    def _gradient(self, parameter: Any, owner: Path) -> Iterator[_Tensor]:
        # torch warns where the gradient of something else is asked for.
        if issubclass(type(parameter), torch.Tensor) and parameter.is_leaf:
            yield from self._tensor(
                parameter.grad, "gradient", owner, "backward", moves=False
            )

    def _tensor(
        self,
        tensor: Any,
        kind: MemoryKind,
        path: Path,
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
            yield storage, KIND[kind], code, moves, tensor


def _listed(tensors: Iterator[_Tensor]) -> list[_Tensor]:
    """What could be found. Models and optimizers may be of any class: that one is not
    what torch's are is no reason to fail."""
    found: list[_Tensor] = []
    with suppress(AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        found.extend(tensors)
    return found
