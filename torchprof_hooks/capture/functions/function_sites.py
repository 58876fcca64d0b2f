"""The sites of functions in the tree of calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, Final

from torchprof_hooks.capture.functions.work import Work, tensors_among, work_of
from torchprof_hooks.capture.record.call_tree import CallTree
from torchprof_hooks.capture.record.function_names import (
    implementation_of_node,
    is_function_of_torch,
)
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.inputs import (
    autocast_type,
    may_look,
    seen_value,
)
from torchprof_hooks.capture.torch_names.modules import place_of_caller
from torchprof_hooks.profiles.modules import ModuleInfo, Shapes
from torchprof_hooks.profiles.names import SHAPES_SHOWN, Phase, function_call_name

#: How many names of functions are told apart at a site, as a program may make new ones
#: forever; and the name of the rest.
NAMES_KEPT: Final = 4096
OTHER_FUNCTIONS: Final = "(other functions)"
#: How many different input shapes of a function are told apart at a site.
SHAPES_KEPT: Final = 64
#: Stands for the shapes beyond that number.
OTHER_SHAPES: Final = "other shapes"

#: How many shapes of a call's inputs are noted at most, and how many types.
_SHAPES_NOTED: Final = 16
_TYPES_NOTED: Final = 8
#: For how many calls with inputs of the same shapes FLOPs are counted: they may differ
#: in which inputs need a gradient.
_WORKS_KEPT: Final = 8

_HIDDEN: Final = "hidden"
#: What runs custom autograd Functions (see `ModuleInfo.implementation`).
CUSTOM: Final = "custom"


class FunctionSites:
    """Finds the sites of functions in a tree of calls.

    counts_flops: whether floating-point operations are counted, for calls that are told
        apart by the shapes of their inputs (see `shaped`).
    """

    def __init__(self, tree: CallTree, counts_flops: bool) -> None:
        self._tree = tree
        self._counts_flops = counts_flops

    def site_of_function(
        self, caller: Site, name: str, shapes: Any = None, runs: str = ""
    ) -> Site:
        """The site of a call of the function of this name from `caller`.

        runs: what runs it (see `ModuleInfo.implementation`).
        """
        if shapes == OTHER_SHAPES:
            element = f"{name}({OTHER_SHAPES})"
        else:
            element = function_call_name(name, shapes)
        phase: Phase = caller.phase
        if phase in ("outside", "backward"):
            phase = caller.phase_of_calls
        known = caller.children_by_name.get((element, phase))
        if known is not None:
            return known[0]
        is_one_too_many = len(caller.children_by_name) > NAMES_KEPT
        if is_one_too_many and shapes is None and name != OTHER_FUNCTIONS:
            return self.site_of_function(caller, OTHER_FUNCTIONS)
        began_ns = perf_counter_ns()
        path = (*_path_inside(caller), element)
        site = self._tree.new_site(caller, path, phase, function=name)
        # What an operator calls is a part of it.
        site.sees_operators &= runs == CUSTOM
        place = self._place(caller, element)
        info = ModuleInfo(name, "function", implementation=runs, place=place)
        self._note(element, info)
        caller.children_by_name[element, phase] = [site]  # when complete
        self._tree.placed(caller, began_ns)
        return site

    def _place(self, caller: Site, element: str) -> str:
        """Where the program first calls a function from outside modules; "" if that is
        known already, or the call is inside a module."""
        known = self._tree.names.infos.get(element)
        if caller.phase != "outside" or (known is not None and known.place):
            return ""
        return f"called first at {place_of_caller()}"

    def _note(self, element: str, info: ModuleInfo) -> None:
        """Add to what is known of the functions of one name."""
        known = self._tree.names.infos.get(element)
        self._tree.names.infos[element] = known.merge(info) if known else info

    def seen(
        self, site: Site, function: Any, args: Any, kwargs: dict[str, Any]
    ) -> Site:
        """`shaped`, for a function that was called with tensors."""
        name = site.function or ""
        if not may_look():
            return self.shaped(site, "", [])
        return self.shaped(
            site,
            name if is_function_of_torch(function) else "",
            [seen_value(value) for value in args],
            {key: seen_value(value) for key, value in kwargs.items()},
        )

    def shaped(
        self,
        site: Site,
        function: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
    ) -> Site:
        """The site of a call with these inputs, next to `site`.

        function: the name by which `work_of` may know its FLOPs; "" if there is none.
        args, kwargs: with `TensorKind`s for tensors.
        """
        inputs = [*tensors_among([*args, *(kwargs or {}).values()])]
        shapes = tuple(kind.shape for kind in inputs)
        shaped = site.by_shapes.get(shapes)
        if shaped is None:
            kept = shapes if len(site.by_shapes) < SHAPES_KEPT else OTHER_SHAPES
            known_sites = len(self._tree.sites)
            shaped = self.site_of_function(site.caller, site.function or "", kept)
            began_ns = perf_counter_ns()
            shaped.sees_operators = site.sees_operators
            # A site's name shows only some shapes: calls with other ones share it.
            is_alone = len(self._tree.sites) > known_sites and kept != OTHER_SHAPES
            shaped.works = [] if self._counts_flops and is_alone else None
            autocast = autocast_type(inputs[0].device) if inputs else None
            info = replace(
                self._tree.names.infos[site.name],
                inputs=tuple(f"{k.dtype}@{k.device}" for k in inputs[:_TYPES_NOTED]),
                autocast=str(autocast or "").removeprefix("torch."),
                place="",
                shapes=_shown(shapes, shaped.name),
            )
            self._note(shaped.name, info)
            site.by_shapes[kept] = shaped
            self._tree.placed(site.caller, began_ns)
        shaped.is_described = False
        if shaped.works is not None and len(shaped.works) < _WORKS_KEPT:
            found = work_of(function, args, kwargs)
            shaped.works.append(found or Work())
            shaped.is_described = found is None
        return shaped

    def hidden(self, site: Site) -> Site:
        """A site next to `site` for calls of functions that have a hook of their own:
        it owns their nodes, but this hook's callbacks are not told of them."""
        hidden = site.by_shapes.get(_HIDDEN)
        if hidden is None:
            hidden = self._tree.new_site(
                site.caller, site.path, site.phase, function=site.function
            )
            hidden.is_hidden = True
            hidden.sees_operators = site.sees_operators
            site.by_shapes[_HIDDEN] = hidden
        return hidden

    def site_of_node(self, caller: Site, name: str) -> Site:
        """The site of the backward of a node without a known function."""
        site = caller.backward.get(name)
        if site is None:
            element = function_call_name(name, None)
            path = () if caller.module is None else caller.path
            site = self._tree.new_site(
                caller, (*path, element), "backward", function=name
            )
            runs = implementation_of_node(name)
            self._note(element, ModuleInfo(name, "function", implementation=runs))
            caller.backward[name] = site
        return site


def _shown(shapes: Sequence[Iterable[Any]], name: str) -> Shapes | None:
    """The shapes that all calls of this name have, for it shows them (see
    `ModuleInfo.shapes`)."""
    if name.endswith(f"({OTHER_SHAPES})"):
        return None
    shown = shapes[:SHAPES_SHOWN] if name.endswith("...)") else shapes
    found = tuple(tuple(n if type(n) is int else -1 for n in s) for s in shown)
    return found if len(found) <= _SHAPES_NOTED else None


def _path_inside(caller: Site) -> tuple[str, ...]:
    if caller.phase == "outside":
        return caller.path[:-1]
    if caller.phase != "backward":
        return caller.path
    enclosing = caller.enclosing  # a recomputation is no part of what asked for it
    return () if enclosing.module is None else enclosing.path
