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
    from torchprof_hooks.capture.functions.operator_calls import Function

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
        self.sees_operators = phase in _WITH_FUNCTIONS
        self.is_region = False  # see above
        self.caller = self if caller is None else caller  # the outermost calls itself
        self.key = NO_MODULE
        self.module: weakref.ref[torch.nn.Module] | None = None
        if module is not None:
            self.adopt(module)
        self.is_counted = True  # whether what is done here counts as calls
        self.is_entry = self.caller.phase != phase
        #: Functions that are called from here, by the names of operators.
        self.functions: dict[str, Function] = {}
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
