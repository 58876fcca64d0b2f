"""Where in the tree of calls a function is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from time import perf_counter_ns
from types import FunctionType
from typing import Any, Final

from torchprof_hooks.capture.functions.call_description import describe_call
from torchprof_hooks.capture.record.call_tree import CallTree
from torchprof_hooks.capture.record.function_names import (
    implementation_of,
    implementation_of_node,
)
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.functions import shapes_of
from torchprof_hooks.capture.torch_names.inputs import input_types
from torchprof_hooks.capture.torch_names.modules import place_of_caller
from torchprof_hooks.profiles.modules import ModuleInfo, Shapes
from torchprof_hooks.profiles.names import Phase, function_call_name

#: How many names of functions are told apart at a site, in case that a program makes
#: new ones forever, and the name of the rest.
NAMES_KEPT: Final = 4096
OTHER_FUNCTIONS: Final = "(other functions)"
#: How many different input shapes of a function are told apart at a site.
SHAPES_KEPT: Final = 64
#: Stands for the shapes beyond that number.
OTHER_SHAPES: Final = "other shapes"

#: The most shapes that are noted of a call's inputs.
_SHAPES_NOTED: Final = 16

_HIDDEN: Final = "hidden"


class FunctionSites:
    """Finds the sites of functions in a tree of calls.

    counts_flops: whether calls are described, so that their floating-point operations
        can be counted later; those with inputs of different shapes have to be told
        apart for it (see `shaped`).
    """

    def __init__(self, tree: CallTree, counts_flops: bool) -> None:
        self._tree = tree
        self._counts_flops = counts_flops

    def site_of_function(
        self, caller: Site, name: str, shapes: Any = None, function: Any = None
    ) -> Site:
        """The site of a call of the function of this name from `caller`."""
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
        site.is_python = isinstance(function, FunctionType)
        runs = "" if function is None else implementation_of(function)
        place = self._place(caller, element)
        info = ModuleInfo(name, "function", implementation=runs, place=place)
        self._note(element, info)
        caller.children_by_name[element, phase] = [site]  # when complete
        self._tree.placed(caller, began_ns)
        return site

    def _place(self, caller: Site, element: str) -> str:
        """Where the program calls a function from outside modules for the first
        time; "" if it is known, or called elsewhere."""
        known = self._tree.names.infos.get(element)
        if caller.phase != "outside" or (known is not None and known.place):
            return ""
        return f"called first at {place_of_caller()}"

    def _note(self, element: str, info: ModuleInfo) -> None:
        """Add to what is known of the functions of one name."""
        known = self._tree.names.infos.get(element)
        self._tree.names.infos[element] = known.merge(info) if known else info

    def shaped(
        self, site: Site, function: Any, args: Any, kwargs: dict[str, Any]
    ) -> Site:
        """The site of a call with these inputs, next to `site`."""
        shapes = shapes_of((*args, *kwargs.values()) if kwargs else args)
        shaped = site.by_shapes.get(shapes)
        if shaped is None:
            kept = shapes if len(site.by_shapes) < SHAPES_KEPT else OTHER_SHAPES
            known_sites = len(self._tree.sites)
            shaped = self.site_of_function(site.caller, site.function or "", kept)
            began_ns = perf_counter_ns()
            shaped.is_python = site.is_python
            # The name of a site shows only so many shapes: calls with others share it.
            is_alone = len(self._tree.sites) > known_sites and kept != OTHER_SHAPES
            shaped.described = (
                describe_call(function, args, kwargs)
                if self._counts_flops and is_alone
                else None
            )
            info = replace(
                self._tree.names.infos[site.name],
                inputs=input_types((*args, *kwargs.values())),
                autocast=shaped.described.autocast_name if shaped.described else "",
                place="",
                shapes=_plain(shapes) if _tells_all(shaped.name) else None,
            )
            self._note(shaped.name, info)
            site.by_shapes[kept] = shaped
            self._tree.placed(site.caller, began_ns)
        return shaped

    def returned(self, site: Site, outputs: object) -> None:
        """The first call at a site from `shaped` returns this."""
        if site.described is not None and site.described.outputs is None:
            began_ns = perf_counter_ns()
            site.described = site.described.returned(outputs)
            self._tree.placed(site, began_ns)

    def hidden(self, site: Site) -> Site:
        """A site next to `site` for calls that are left to a hook of their own: their
        nodes are known, but nobody is told of them."""
        hidden = site.by_shapes.get(_HIDDEN)
        if hidden is None:
            hidden = self._tree.new_site(
                site.caller, site.path, site.phase, function=site.function
            )
            hidden.is_hidden = True
            site.by_shapes[_HIDDEN] = hidden
        return hidden

    def site_of_node(self, caller: Site, name: str) -> Site:
        """The site of the backward of a node that no function is known for."""
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


def _tells_all(name: str) -> bool:
    """Whether calls of this name have the same shapes."""
    return not name.endswith(("...)", f"({OTHER_SHAPES})"))


def _plain(shapes: Iterable[Iterable[Any]]) -> Shapes | None:
    """Shapes as plain numbers (see `ModuleInfo.shapes`)."""
    found = tuple(tuple(n if type(n) is int else -1 for n in s) for s in shapes)
    return found if len(found) <= _SHAPES_NOTED else None


def _path_inside(caller: Site) -> tuple[str, ...]:
    if caller.is_recomputation:
        caller = caller.caller
    if caller.phase == "outside":
        return caller.path[:-1]
    if caller.phase != "backward":
        return caller.path
    enclosing = caller.enclosing  # recomputed: not a part of what asked for it
    return () if enclosing.module is None else enclosing.path
