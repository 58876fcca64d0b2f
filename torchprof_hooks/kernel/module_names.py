"""Names of modules: the root's class name, then the qualified name inside the root. And
functions that are measured as if they were modules."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from torchprof_hooks.kernel.torch_names.compiler import (
    is_compiled_module,
)
from torchprof_hooks.kernel.torch_names.modules import (
    class_name,
    is_replica,
    original_module,
    place_of_caller,
)
from torchprof_hooks.profiles.modules import ModuleInfo


class ProfiledFunction(torch.nn.Module):
    """Calls a function. To all hooks it is a module with no other inside; all that is
    called in it, also backward passes and optimizers, is a part of it.

    place: where it was made, "train.py:42".
    """

    def __init__(self, function: Callable[..., Any], place: str) -> None:
        super().__init__()
        self.function = function
        self.place = place

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        return self.function(*args, **kwargs)


def make_profiled_function(
    function: Callable[..., Any], name: str, place: str
) -> ProfiledFunction:
    """A profiled function whose class is called `name`: reports list it by that."""
    named: type[ProfiledFunction] = type(name, (ProfiledFunction,), {})
    return named(function, place)


class ModuleNames:
    """Knows the name of every module that was called, without keeping any alive.

    An outermost module is a root; all modules inside it get names from it. A module
    keeps its first name: one that stands in two places is listed under the first, and
    the other names are remembered as aliases. Two living roots of one class are ``Net``
    and ``Net#2``; the number of a dead root is used again, so a module that is made
    anew for every step (a loss, say) keeps one name.

    number_roots: whether two living roots of one class have different names.
    """

    def __init__(self) -> None:
        self.infos: dict[str, ModuleInfo] = {}
        self._names: dict[int, str] = {}
        self._refs: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._forgetters: dict[int, dict[int, Callable[[int], object]]] = {}
        self.number_roots = True
        self._root_numbers: defaultdict[str, dict[int, int]] = defaultdict(dict)

    def get(self, module: torch.nn.Module) -> str | None:
        """The name of `module`, or None if no root that was called contains it."""
        return self._names.get(id(module))

    def add_root(self, root: torch.nn.Module) -> str:
        """Name `root` and every module inside it that has no name yet."""
        original = original_module(root)
        prefix = self.get(original)
        if prefix is None:
            cls = class_name(original)
            number = self._number(original, cls)
            prefix = cls if number == 1 else f"{cls}#{number}"
        self._name_all(root, prefix)
        self.called_from_outside(root, prefix)
        return prefix

    def called_from_outside(self, module: torch.nn.Module, name: str) -> None:
        """`module` is called in no other module's call: maybe for the first time."""
        if not self.infos[name].place:
            if isinstance(module, ProfiledFunction):
                place = f"made at {module.place}"
            else:
                place = f"called first at {place_of_caller()}"
            self.infos[name] = replace(self.infos[name], place=place)

    def add_child(self, module: torch.nn.Module, parent: torch.nn.Module) -> str | None:
        """Name a module that was put somewhere inside `parent` after `parent` was
        named; None if it is not inside `parent`."""
        prefix = self.get(parent)
        if prefix is None or all(inner is not module for inner in parent.modules()):
            return None
        self._name_all(parent, prefix)
        return self.get(module)

    def add_unregistered(self, module: torch.nn.Module, caller_name: str) -> str:
        """Name a module that is inside no other, after its caller and its class; or a
        block, or a function, which has its own name wherever it is."""
        name = class_name(module)
        if not isinstance(module, ProfiledFunction):
            name = f"{caller_name}.<{name}>"
        self._add(module, name)
        return name

    def when_gone(
        self, module: torch.nn.Module, owner: object, forget: Callable[[int], object]
    ) -> None:
        """Call `forget` with the id of `module` when it dies, as ids are used again:
        once for each `owner`, however often the owner asks for it."""
        self._watch(module)
        self._forgetters.setdefault(id(module), {})[id(owner)] = forget

    def _number(self, root: torch.nn.Module, cls: str) -> int:
        if is_replica(root) or not self.number_roots:
            return 1
        numbers = self._root_numbers[cls]
        taken = set(numbers.values())
        number = next(n for n in range(1, len(numbers) + 2) if n not in taken)
        numbers[id(root)] = number
        self.when_gone(root, numbers, lambda key: numbers.pop(key, None))
        return number

    def _name_all(self, root: torch.nn.Module, prefix: str) -> None:
        for name, module in _qualified_modules(root, prefix):
            known = self.get(module)
            if known is None:
                self._add(module, name)
            elif known != name:
                self.infos[known] = self.infos[known].with_alias(name)

    def _add(self, module: torch.nn.Module, name: str) -> None:
        self._watch(module)
        info = ModuleInfo(class_name(module), compiled=is_compiled_module(module))
        known = self.infos.get(name)
        self.infos[name] = info if known is None else known.merge(info)
        self._names[id(module)] = name  # last: whoever finds it needs the rest

    def _watch(self, module: torch.nn.Module) -> None:
        key = id(module)
        if key not in self._refs:
            self._refs[key] = weakref.ref(module, lambda _: self._forget(key))

    def _forget(self, key: int) -> None:
        self._refs.pop(key, None)
        self._names.pop(key, None)
        for forget in self._forgetters.pop(key, {}).values():
            forget(key)


def _qualified_modules(
    root: torch.nn.Module, prefix: str
) -> Iterator[tuple[str, torch.nn.Module]]:
    """Every (qualified name, module) in `root`, in order. A module that stands in
    several places comes once for each, its inside only with the first. Unlike
    ``named_modules(remove_duplicate=False)``, this ends if a module contains itself."""
    entered: set[int] = set()
    to_visit = [(prefix, root)]
    while to_visit:
        name, module = to_visit.pop()
        yield name, module
        if id(module) not in entered:
            entered.add(id(module))
            children = [
                (name if key == "_orig_mod" else f"{name}.{key}", child)
                for key, child in module._modules.items()
                if child is not None
            ]
            to_visit.extend(reversed(children))
