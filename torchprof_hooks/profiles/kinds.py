"""Layers of a kind: modules of one class whose names differ in numbers only. Here they
are found, named and added up, for all reports alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Final, NamedTuple, TypeVar

from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import FUSED_CLASS
from torchprof_hooks.profiles.rows import Row

T = TypeVar("T")
R = TypeVar("R", bound=Row)

#: The number of a layer in a qualified name.
_NUMBER: Final = re.compile(r"\.\d+(?=\.|$)")


class LayerKind(NamedTuple):
    """Modules of one class whose names differ in numbers only.

    name: their common name, ``Net.blocks.*.norm``; of other rows, and of layers that
        are kept apart, the name.
    class_name: their class; "" if none of them was called.
    """

    name: str
    class_name: str = ""

    def label(self, names: Collection[str]) -> str:
        """What reports call these of the layers: ``Net.blocks.*: 4 Linear``; one of
        them by its own name."""
        if len(names) == 1:
            return next(iter(names))
        return f"{self.name}: {count_of(len(names), self.class_name or 'modules')}"


def count_of(count: int, class_name: str) -> str:
    """``6 Linear``; ``6 fused kernels``, which have no class."""
    return f"{count} {class_name}" + "s" * (class_name == FUSED_CLASS and count > 1)


def without_numbers(module_name: str) -> str:
    """The common name of layers of a kind: ``Net.blocks.*.norm``."""
    return _NUMBER.sub(".*", module_name)


def layer_around(module_name: str) -> str:
    """The outermost layer with a number: ``Net.blocks.3`` of ``Net.blocks.3.mlp.0``; ""
    if there is none."""
    found = _NUMBER.search(module_name)
    return module_name[: found.end()] if found else ""


def kind_of(row: Row, apart: Collection[str] = ()) -> LayerKind:
    """The kind of a row.

    apart: names of layers that are a kind of their own.
    """
    is_alike = row.kind == "module" and row.name not in apart
    name = without_numbers(row.name) if is_alike else row.name
    return LayerKind(name, row.class_name)


def kinds_of_names(infos: Mapping[str, ModuleInfo]) -> Callable[[str], LayerKind]:
    """A function from a name to its kind, also for modules that were not called, and
    so are not described."""

    @cache
    def classes() -> Mapping[str, str]:
        return {without_numbers(name): info.class_name for name, info in infos.items()}

    @cache
    def kind(name: str) -> LayerKind:
        common, info = without_numbers(name), infos.get(name)
        return LayerKind(common, info.class_name if info else classes().get(common, ""))

    return kind


def grouped(
    items: Iterable[T], kind: Callable[[T], LayerKind]
) -> dict[LayerKind, list[T]]:
    """The items of each kind, in the order in which the kinds come first."""
    groups: dict[LayerKind, list[T]] = {}
    for item in items:
        groups.setdefault(kind(item), []).append(item)
    return groups


def by_kind(rows: Iterable[R], apart: Collection[str] = ()) -> dict[LayerKind, list[R]]:
    """The rows of each kind (see `kind_of`)."""
    return grouped(rows, lambda row: kind_of(row, apart))
