"""The tree of the calls of one thread: its sites, where the thread can be, and at which
of them a call is booked."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch

from torchprof_hooks.kernel.core import Node
from torchprof_hooks.kernel.module_names import ModuleNames, ProfiledFunction
from torchprof_hooks.kernel.torch_names.modules import (
    class_name,
    forward_around,
    has_parameters,
)
from torchprof_hooks.profiles.names import (
    CALLED_PHASES,
    ENGINE_NAME,
    Phase,
    optimizer_name,
)

#: `Site.key` of sites that are not a module call.
NO_MODULE: Final = 0
#: Phases in which functions are calls of their own.
_WITH_FUNCTIONS: Final = ("outside", "forward", "recompute", "data")


#: The path of a site; or what makes it, once somebody asks: names of calls take longer
#: than what else a new site takes.
Path = tuple[str, ...] | Callable[[], tuple[str, ...]]


class Site(Node):
    """One (chain of calls, phase): what a thread can be working for.

    Sites form a tree. The thread comes here from `caller`, and goes back to it
    afterwards, so the own time of a site is its time without that of the sites called
    from it. `path` is where a reader finds it: the names of the enclosing modules and
    its own.

    A module that calls itself opens a deeper site. What a cursor has to know of a site
    is in the base class, `Node`.

    is_region: whether the code called here is compiled: nothing inside is followed.
    """

    caller: Site
    path: tuple[str, ...]
    if TYPE_CHECKING:  # what the native core knows of a function (see its node.h)
        is_mixed: bool
        flops: int
        gradient_flops: int
        with_gradients: int

        def count_work(self, is_mixed: bool, /) -> None: ...

    __slots__ = (
        "_is_model",
        "_make_path",
        "backward",
        "children_by_name",
        "function",
        "functions",
        "is_counted",
        "is_region",
        "made_by",
        "module",
        "path",
        "phase",
    )

    def __init__(  # noqa: PLR0917
        self,
        code: int,
        caller: Site | None,
        path: Path,
        phase: Phase,
        module: torch.nn.Module | None = None,
        function: str | None = None,
    ) -> None:
        super().__init__()
        self.code = code
        if callable(path):
            self._make_path = path
        else:
            self.path = path
        self.phase = phase
        self.function = function  # name of the function that is called here, if one is
        self.is_function = function is not None
        self.is_called = phase in CALLED_PHASES
        self.observes_operators = phase in _WITH_FUNCTIONS
        self.communicates = phase == "communication"
        self.is_region = False  # see above
        self.caller = self if caller is None else caller  # the outermost calls itself
        self.key = NO_MODULE
        self.module: weakref.ref[torch.nn.Module] | None = None
        self._is_model: bool | None = None  # None: not known yet
        if module is not None:
            self.adopt(module)
        self.is_counted = True  # whether what is done here counts as calls
        self.is_entry = self.caller.phase != phase
        #: For what measures functions: those called from here, by their operators.
        self.functions: dict[str, Any] = {}
        self.children_by_name: dict[tuple[str, Phase], list[Site]] = {}
        self.backward: dict[object, Site] = {}  # by code of the forward, or node name
        #: For a backward: the site of the forward that it belongs to, if that is known.
        self.made_by: Site | None = None

    def adopt(self, module: torch.nn.Module) -> None:
        """From now on, calls of `module` are calls at this site."""
        self.key = id(module)
        self.module = weakref.ref(module)

    def living_module(self) -> torch.nn.Module | None:
        """The module whose calls are calls at this site, unless it is gone."""
        return None if self.module is None else self.module()

    def is_model(self) -> bool:
        """Whether the module that is called here has parameters; or, of a block,
        whether modules, or compiled code, were called inside of it."""
        if not self._is_model:
            if self.is_block():
                inner = itertools.chain.from_iterable(self.children_by_name.values())
                self._is_model = self.is_region or any(
                    site.module is not None and (not site.is_block() or site.is_model())
                    for site in inner
                )
            elif self._is_model is None:  # asked once: it goes through the module
                module = self.living_module()
                self._is_model = module is not None and has_parameters(module)
        return bool(self._is_model)

    def is_block(self) -> bool:
        """Whether what is called here is a block, or a function, of the program."""
        return isinstance(self.living_module(), ProfiledFunction)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The path, where it is asked for first, and is still to be made."""
            if name != "path":
                raise AttributeError(name)
            self.path = self._make_path()
            return self.path

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else ""

    @property
    def phase_of_calls(self) -> Phase:
        """The phase of a module or a function that is called from here."""
        return "recompute" if self.phase in ("backward", "recompute") else "forward"

    @property
    def enclosing(self) -> Site:
        """The nearest site around, or this one, that is not that of a function."""
        site = self
        while site.function is not None:
            site = site.caller
        return site


def profiled_path(site: Site) -> tuple[str, ...]:
    """Path of the innermost profiled function around `site`: all that is called in the
    function belongs to it. () if there is none."""
    while site.caller is not site:
        if site.is_block():
            return site.path
        site = site.caller
    return ()


class CallTree:
    """Finds the site of a call, and makes one where there is none yet.

    names: of the modules.
    sites: all there are, by their codes; the list of a cursor.
    """

    def __init__(self, names: ModuleNames, sites: list[Site]) -> None:
        self.names = names
        self.sites = sites
        self._unregistered: set[tuple[int, str]] = set()  # code of the caller, class
        self._paths: dict[str, tuple[str, ...]] = {}  # of the newest sites, by names

    def new_site(
        self,
        caller: Site | None,
        path: Path,
        phase: Phase,
        module: torch.nn.Module | None = None,
        function: str | None = None,
    ) -> Site:
        """A site that was not there before."""
        site = Site(len(self.sites), caller, path, phase, module, function)
        # Optimizers call the program as well: their closures.
        self.sites.append(site)
        return site

    # Modules

    def site_of_module(self, caller: Site, module: torch.nn.Module) -> Site:
        """The site of a call of `module` from `caller`."""
        known: Site | None = caller.child(id(module))
        if known is not None:
            return known
        site = self._site_named(caller, self._name(caller, module), module)
        # First: after an interrupt in between, the id may be another module's.
        self.names.when_gone(module, caller, caller.forget_child)
        caller.add_child(id(module), site)
        return site  # not by `child`: another thread may have removed it again

    def _site_named(self, caller: Site, name: str, module: torch.nn.Module) -> Site:
        """A site for `module`. Modules of one name (replicas, or those that are made
        anew for every step) need a site each while they live. A site whose module is
        gone is used again, so that the number of sites does not grow."""
        phase = caller.phase_of_calls
        namesakes = caller.children_by_name.setdefault((name, phase), [])
        for site in namesakes:
            living = site.living_module()
            if living is None or living is module:
                site.adopt(module)
                return site
        if phase == "forward" != caller.phase:
            self.names.called_from_outside(module, name)
        site = self.new_site(caller, self._path(caller, name, phase), phase, module)
        namesakes.append(site)
        return site

    def _name(self, caller: Site, module: torch.nn.Module) -> str:
        name = self.names.get(module)
        if name is not None:
            return name
        kind = caller.code, class_name(module)
        if kind not in self._unregistered:
            for holder in _modules_around(caller):
                name = self.names.add_child(module, holder)
                if name is not None:
                    return name
            self._unregistered.add(kind)  # do not search the model for each such call
        enclosing = caller.enclosing
        is_called = enclosing.module is not None and enclosing.phase in CALLED_PHASES
        if is_called and not enclosing.is_block():
            return self.names.add_unregistered(module, enclosing.name)
        if self.names.number_roots:
            running = forward_around(module)
            if running is not None:
                self.names.add_root(running)
        return self.names.get(module) or self.names.add_root(module)

    def _path(self, caller: Site, name: str, phase: Phase) -> tuple[str, ...]:
        if caller.phase == phase:
            path = (*caller.path, name)
        elif phase == "forward":
            path = (*profiled_path(caller), name)
        else:  # recomputed from within a backward pass: where forward is, most likely
            return self._paths.get(name, (name,))
        self._paths[name] = path
        return path

    def forget(self, module: torch.nn.Module) -> None:
        """Forget at which sites `module` is called: its next calls look for them
        anew."""
        for site in self.sites:
            site.forget_child(id(module))

    # Entries: calls that interrupt their caller instead of being a part of it

    def interruption_site(
        self, caller: Site, name: str, phase: Phase, key: int = NO_MODULE
    ) -> Site:
        """The site of something that is not a module, called from `caller`."""
        known = caller.children_by_name.get((name, phase))
        if known is None:
            element = optimizer_name(name) if phase == "optimizer" else name
            path = (*profiled_path(caller), element)
            known = [self.new_site(caller, path, phase)]
            known[0].is_entry = True  # also if the caller is of the same phase
            caller.children_by_name[name, phase] = known
        known[0].key = key
        return known[0]

    def uncounted(self, site: Site) -> Site:
        """Move the open call of `site` to a site next to it, where it takes time but
        does not count as a call. Returns that site."""
        namesakes = site.caller.children_by_name[site.name, site.phase]
        if len(namesakes) == 1:
            namesakes.append(self.new_site(site.caller, site.path, site.phase))
        other = namesakes[1]
        other.is_counted = False
        other.continue_call_of(site)
        return other

    # Backward

    def engine_site(self, base: Site) -> Site:
        """The site of the engine's own time in passes that are booked on `base`."""
        known = base.children_by_name.get((ENGINE_NAME, "backward"))
        if known is None:
            path = (*base.path[:-1], ENGINE_NAME)
            known = [self.new_site(base, path, "backward")]
            known[0].is_counted = False
            base.children_by_name[ENGINE_NAME, "backward"] = known
        return known[0]

    def backward_site(self, caller: Site, code: int) -> Site:
        """The site of the backward of calls at the forward site with this code, inside
        of the backward site `caller`."""
        site = caller.backward.get(code)
        if site is None:
            forward = self.sites[code]
            function = forward.function
            path: Path = (lambda: forward.path) if function else forward.path
            site = self.new_site(caller, path, "backward", function=function)
            site.module = forward.module  # but no key: no forward ends here
            site.is_region = forward.is_region
            if forward.phase != "backward":
                site.made_by = forward
            caller.backward[code] = site
        return site


def _modules_around(site: Site) -> Iterator[torch.nn.Module]:
    """The modules of the calls around what is called from `site`, innermost first."""
    while site.caller is not site:
        module = site.living_module()
        if module is not None:
            yield module
        site = site.caller
