"""Measures functions by torch's operators, of which the native core notifies us."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from torchprof_hooks.instruments.functions.work import Work, has_formula, work_of
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.reading import Reading
from torchprof_hooks.kernel.reference.span_log import Int64s, at_length
from torchprof_hooks.kernel.torch_names.compiler import (
    is_compiled_module,
    is_tracing,
)
from torchprof_hooks.kernel.torch_names.modules import place_of_caller
from torchprof_hooks.kernel.torch_names.tensors import (
    autocast_type,
    tensors_among,
    unusual_types,
)
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.modules import ModuleInfo, Shapes
from torchprof_hooks.profiles.names import SHAPES_SHOWN, Phase, function_call_name

#: How many different input shapes of a function are kept apart at a site, and what
#: stands for the shapes beyond that number.
SHAPES_KEPT: Final = 64
OTHER_SHAPES: Final = "other shapes"

#: How many shapes of a call's inputs are noted at most, and how many types.
_SHAPES_NOTED: Final = 16
_TYPES_NOTED: Final = 8

_OF_TORCH: Final = "aten::"
#: Operators -> the names that users write.
_AS_WRITTEN: Final = {
    "cross_entropy_loss": "cross_entropy",
    "is_nonzero": "__bool__",
    "matrix_H": "H",
    "nll_loss_nd": "nll_loss",
    "numpy_T": "T",
}
#: Operators that compute nothing, and are called very often: all are in one row.
_SMALL: Final = frozenset({
    "alias", "detach", "detach_", "lift_fresh",
    "resolve_conj", "resolve_neg", "result_type", "set_",
})  # fmt: skip
SMALL_NAME: Final = "small operators"
#: What runs custom autograd Functions (see `ModuleInfo.implementation`).
_CUSTOM: Final = "custom"


class Function(NamedTuple):
    """An operator that is called from a site.

    runs: see `ModuleInfo.implementation`.
    by_inputs: the sites of its calls, by the shapes and types of their inputs, and then
        by which of these need gradients.
    """

    name: str
    runs: str
    by_inputs: dict[object, dict[tuple[bool, ...], Site]]


class OperatorCalls(Observer):
    """Measures the functions of a thread, of which the native core is notified.

    A function is an outermost operator inside of the current call: ``linear``, but not
    the ``addmm`` that it calls. Custom autograd Functions, which have the names of
    their classes, call functions in turn. Steps of optimizers are not divided.

    A function call has a site for each combination of shapes and types of its inputs,
    and of those that need gradients, inside that of its caller. It owns the nodes that
    it makes; a node without a known function counts as a function of its own, named
    after the node.
    """

    def follow(self, reading: Reading) -> None:
        super().follow(reading)
        reading.functions = self
        self._tree = reading.tree

    def began(self) -> None:
        self.reading.observe_operators(True)

    def ended(self) -> None:
        self.reading.observe_operators(False)

    def given_up(self) -> None:
        self.ended()

    def columns(self, calls: Int64s, of_first_step: bool) -> dict[str, Sequence[Any]]:
        """Floating-point operations. How many were in the first step was not read then:
        they are divided in proportion to calls."""
        sites = self.reading.sites[: len(calls)]
        if not of_first_step:
            return {"flops": [*map(_flops, sites, calls.tolist())]}
        every = at_length(self.reading.calls(), len(sites)).tolist()
        return {
            "flops": [
                _flops(site, of_all) * some // max(of_all, 1)
                for site, of_all, some in zip(sites, every, calls.tolist(), strict=True)
            ]
        }

    # What the core asks

    def place(self, caller: Site, operator: str, inputs: list[Any]) -> Site | None:
        """The site of a call of an operator, which is new at `caller`; None if it is no
        function.

        inputs: tensors as the tuples of `TensorKind`.
        """
        around = caller.living_module()
        if caller.is_region or (around is not None and is_compiled_module(around)):
            caller.observes_operators = False  # a part of a compiled region
            return None
        if is_tracing():
            return None
        function = caller.functions.get(operator) or _function(caller, operator)
        known = function.by_inputs
        kinds = [*tensors_among(inputs)]
        shapes: Any = tuple(kind.shape for kind in kinds)
        key: object = shapes, *(kind.c_type for kind in kinds)
        if function.name == SMALL_NAME:
            key = shapes = None
        elif key not in known and len(known) >= SHAPES_KEPT:
            key = shapes = OTHER_SHAPES
        # Which gradients are computed depends on which inputs need one; of calls whose
        # shapes are not kept apart, each is counted.
        is_mixed = shapes is None or shapes == OTHER_SHAPES
        needed = () if is_mixed else tuple(kind.needs_grad for kind in kinds)
        sites = known.setdefault(key, {})
        site = sites.get(needed)
        if site is None:
            site = sites[needed] = self._site(caller, function, shapes, inputs)
        return site

    def count_work(
        self, operator: str, inputs: list[Any]
    ) -> Work | Literal[False] | None:
        """The FLOPs of a call of an operator; False if they do not follow
        from the shapes of its inputs, None if there is no formula."""
        if not has_formula(operator):
            return None
        return work_of(operator, inputs) or False

    # Sites

    def _site(
        self, caller: Site, function: Function, shapes: Any, inputs: list[Any]
    ) -> Site:
        place = ""
        if caller.phase == "outside":
            place = f"called first at {place_of_caller()}"
        call = Call(function, shapes, inputs, _autocast(inputs), place)
        phase: Phase = caller.phase
        if phase in ("outside", "backward"):
            phase = caller.phase_of_calls
        path = partial(self._path, caller, call)
        site = self._tree.new_site(caller, path, phase, function=function.name)
        # What an operator calls is a part of it.
        site.observes_operators &= function.runs == _CUSTOM
        if function.runs != _CUSTOM and shapes is not None:
            site.count_work(shapes == OTHER_SHAPES)
        return site

    def _path(self, caller: Site, call: Call) -> tuple[str, ...]:
        name, info = call.described()
        known = self._tree.names.infos.get(name)
        if known is not None and known.place:
            info = replace(info, place="")
        self._note(name, info)
        return (*_path_inside(caller), name)

    def site_of_node(self, caller: Site, name: str) -> Site:
        """The site of the backward of a node without a known function."""
        site = caller.backward.get(name)
        if site is None:
            element = function_call_name(name, None)
            path = () if caller.module is None else caller.path
            site = self._tree.new_site(
                caller, (*path, element), "backward", function=name
            )
            # Torch's own are called ``AddmmBackward0`` or ``torch::autograd::...``.
            is_custom = name.endswith("Backward") and "::" not in name
            runs = _CUSTOM if is_custom else "C"
            self._note(element, ModuleInfo(name, "function", implementation=runs))
            caller.backward[name] = site
        return site

    def _note(self, element: str, info: ModuleInfo) -> None:
        """Add to what is known of the functions of one name."""
        known = self._tree.names.infos.get(element)
        self._tree.names.infos[element] = known.merge(info) if known else info


def _flops(site: Site, calls: int) -> int:
    """Floating-point operations of so many calls at `site`, without those that did not
    run to their end."""
    forward, ended = site.made_by or site, max(calls - site.cut, 0)
    if site.phase != "backward":
        return forward.flops if forward.is_mixed else ended * forward.flops
    if forward.is_mixed:  # the mean of those forwards that have a backward
        return ended * forward.gradient_flops // max(forward.with_gradients, 1)
    return ended * forward.gradient_flops


def _function(caller: Site, operator: str) -> Function:
    """A function that is called from `caller` for the first time."""
    if "::" not in operator:
        name, runs = operator, _CUSTOM
    elif not operator.startswith(_OF_TORCH):
        name, runs = operator, "op"
    else:
        short, runs = operator.removeprefix(_OF_TORCH), "C"
        name = SMALL_NAME if short in _SMALL else _AS_WRITTEN.get(short, short)
    made: Function = caller.functions.setdefault(operator, Function(name, runs, {}))
    return made


class Call(NamedTuple):
    """Calls of a function with inputs of these shapes, as the first of them was made.

    shapes: of all inputs; None: they are not kept apart.
    autocast, place: see `ModuleInfo`.
    """

    function: Function
    shapes: Any
    inputs: list[Any]
    autocast: str
    place: str

    def described(self) -> tuple[str, ModuleInfo]:
        """Their name, and what is known of them."""
        function, shapes = self.function, self.shapes
        kinds = [*tensors_among(self.inputs)]
        name = function_call_name(function.name, shapes, unusual_types(kinds))
        if shapes == OTHER_SHAPES:
            name, shapes = f"{function.name}({OTHER_SHAPES})", None
        info = ModuleInfo(
            function.name,
            "function",
            implementation=function.runs,
            inputs=tuple(
                f"{kind.dtype}@{kind.device}" for kind in kinds[:_TYPES_NOTED]
            ),
            autocast=self.autocast,
            place=self.place,
            shapes=None if shapes is None else _noted(shapes, name),
        )
        return name, info


def _autocast(inputs: list[Any]) -> str:
    """The type to which autocast converts the inputs of products; "": it is off."""
    first = next(tensors_among(inputs), None)
    found = None if first is None else autocast_type(first.device)
    return str(found or "").removeprefix("torch.")


def _noted(shapes: Sequence[tuple[Any, ...]], name: str) -> Shapes | None:
    """The shapes that all calls of this name have, as the name has them (see
    `ModuleInfo.shapes`)."""
    noted = shapes[:SHAPES_SHOWN] if "..." in name else shapes
    found = tuple(tuple(n if type(n) is int else -1 for n in s) for s in noted)
    return found if len(found) <= _SHAPES_NOTED else None


def _path_inside(caller: Site) -> tuple[str, ...]:
    if caller.phase == "outside":
        return caller.path[:-1]
    if caller.phase != "backward":
        return caller.path
    enclosing = caller.enclosing  # a recomputation is no part of what asked for it
    return () if enclosing.module is None else enclosing.path
