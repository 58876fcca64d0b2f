"""The description of a name in a profile: its class, kind and the like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from torchprof_hooks.profiles.amounts import Signed
from torchprof_hooks.profiles.names import Kind, united
from torchprof_hooks.profiles.phases import PHASES, kind_of_other

#: The shapes of tensors; -1 stands for a size that is not known.
Shapes = tuple[tuple[Signed, ...], ...]

#: A name that is of two kinds in two runs is of the first of them: a module that some
#: run called keeps its row.
_KINDS: Final = (*("module", "function", "backward"), *PHASES, "not measured")

#: `ModuleInfo.inputs` of calls that were made with inputs of different types.
MIXED_INPUTS: Final = ("mixed",)


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """Description of one named row.

    class_name: the class of the module, or the name of the function ("" for rows that
        are neither).
    kind: "module", "function", or the kind of a row that is neither (see `Kind`).
    aliases: other qualified names of a shared module, sorted.
    compiled: whether it runs code made by torch.compile.
    implementation: what runs a function: "C" (torch's own C++), "Py" (a function
        written in Python), "op" (one of ``torch.ops``), "custom" (a custom autograd
        Function); "" for other rows.
    inputs: data type and device (``float32@cpu``) of the first input tensors, when the
        call was first made at each place. () where calls of different shapes share a
        name, `MIXED_INPUTS` if places differ.
    autocast: the type to which autocast converted the inputs of matrix products at that
        call: ``bfloat16``; "" where autocast was off.
    place: of an outermost module, and of a function called from outside modules,
        "called first at train.py:42"; of a profiled function, "made at train.py:42".
    shapes: shapes of a call's input tensors, with -1 for sizes that are not known; of
        the first ones, where the name shows no others (``...``); None where calls of
        other shapes share a name, or have many tensors.
    order: place among the names of a run, in the order of their first calls.
    """

    class_name: str = ""
    kind: Kind = "module"
    aliases: tuple[str, ...] = ()
    compiled: bool = False
    order: int = 0
    implementation: str = ""
    inputs: tuple[str, ...] = ()
    autocast: str = ""
    place: str = ""
    shapes: Shapes | None = None

    def with_alias(self, name: str) -> ModuleInfo:
        """This description with one more alias."""
        return replace(self, aliases=tuple(sorted({*self.aliases, name})))

    def merge(self, other: ModuleInfo) -> ModuleInfo:
        """The descriptions of one name in two profiles as one; the order does not
        matter. Two classes under one name (such as ``Sequential.0``) are joined by
        "|"."""
        if self == other:
            return self
        known = [s for s in (self.shapes, other.shapes) if s is not None]
        class_names = {*self.class_name.split("|"), *other.class_name.split("|")}
        return ModuleInfo(
            class_name="|".join(sorted(class_names)),
            kind=min(self.kind, other.kind, key=_KINDS.index),
            aliases=tuple(sorted({*self.aliases, *other.aliases})),
            compiled=self.compiled or other.compiled,
            order=min(self.order, other.order),
            implementation=united(self.implementation, other.implementation, "|"),
            inputs=_same_inputs(self.inputs, other.inputs),
            autocast=united(self.autocast, other.autocast, "|"),
            place=united(self.place, other.place, "|"),
            # The name contains them: where both are known, they are equal.
            shapes=max(known, default=None),
        )


def all_modules(
    one: Mapping[str, ModuleInfo], other: Mapping[str, ModuleInfo]
) -> dict[str, ModuleInfo]:
    """The descriptions of the names of two runs together."""
    modules = dict(one)
    for name, info in other.items():
        modules[name] = modules[name].merge(info) if name in modules else info
    return modules


def _same_inputs(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    if one == other or not other:
        return one
    return MIXED_INPUTS if one else other


def descriptions(
    names: Iterable[str], known: Mapping[str, ModuleInfo]
) -> dict[str, ModuleInfo]:
    """A description of each name: that of `known`, or what the name itself says."""
    return {n: known.get(n) or ModuleInfo(kind=kind_of_other(n)) for n in names}
