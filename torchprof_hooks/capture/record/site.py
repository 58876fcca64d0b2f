"""Call sites: where in the tree of calls a thread can be; and functions that are
measured as if they were modules."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from torchprof_hooks.capture.core import Node
from torchprof_hooks.profiles.names import CALLED_PHASES, Phase

if TYPE_CHECKING:
    from torchprof_hooks.capture.functions.work import Work

#: `Site.key` of sites that are not a module call.
NO_MODULE: Final = 0
#: Phases in which functions are calls of their own.
_WITH_FUNCTIONS: Final = ("outside", "forward", "recompute", "data")


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
    functions: dict[Any, Site | None]
    by_shapes: dict[object, Site]

    __slots__ = (
        "backward",
        "by_shapes",
        "children_by_name",
        "function",
        "functions",
        "is_counted",
        "is_hidden",
        "is_region",
        "module",
        "path",
        "phase",
        "works",
    )

    def __init__(  # noqa: PLR0917
        self,
        code: int,
        caller: Site | None,
        path: tuple[str, ...],
        phase: Phase,
        module: torch.nn.Module | None = None,
        function: str | None = None,
    ) -> None:
        super().__init__()
        self.code = code
        self.path = path
        self.phase = phase
        self.function = function  # name of the function that is called here, if one is
        self.is_function = function is not None
        self.is_called = phase in CALLED_PHASES
        self.sees_operators = phase in _WITH_FUNCTIONS
        self.is_region = False  # see above
        self.caller = self if caller is None else caller  # the outermost calls itself
        self.key = NO_MODULE
        self.module: weakref.ref[torch.nn.Module] | None = None
        if module is not None:
            self.adopt(module)
        self.is_counted = True  # whether what is done here counts as calls
        self.is_entry = self.caller.phase != phase
        self.is_hidden = False  # whether callbacks are not told of calls here
        #: Functions that are called from here; None: they are not followed.
        self.functions: dict[Any, Site | None] = {}
        self.children_by_name: dict[tuple[str, Phase], list[Site]] = {}
        #: For a function: its calls by the shapes of their inputs.
        self.by_shapes: dict[object, Site] = {}
        self.backward: dict[object, Site] = {}  # by code of the forward, or node name
        #: FLOPs of a call here, or of its forward (see `best_of`); None: not counted.
        self.works: list[Work] | None = None

    def adopt(self, module: torch.nn.Module) -> None:
        """From now on, calls of `module` are calls at this site."""
        self.key = id(module)
        self.module = weakref.ref(module)

    def living_module(self) -> torch.nn.Module | None:
        """The module whose calls are calls at this site, unless it is gone."""
        return None if self.module is None else self.module()

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


def profiled_path(site: Site) -> tuple[str, ...]:
    """Path of the innermost profiled function around `site`: all that is called in the
    function belongs to it. () if there is none."""
    while site.caller is not site:
        if isinstance(site.living_module(), ProfiledFunction):
            return site.path
        site = site.caller
    return ()
