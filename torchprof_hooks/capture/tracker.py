"""Follows one thread through its module calls: the hot path of all measuring."""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, Final

import torch

from torchprof_hooks.capture.attach.compile_shield import compile_shield
from torchprof_hooks.capture.core import Cursor
from torchprof_hooks.capture.module_names import ModuleNames
from torchprof_hooks.capture.profiled_function import (
    ProfiledFunction,
    profiled_path,
)
from torchprof_hooks.capture.site import NO_MODULE, Site
from torchprof_hooks.capture.torch_names.compiler import (
    is_compiled_module,
    is_tracing,
)
from torchprof_hooks.capture.torch_names.modules import (
    class_name,
    owners_on_stack,
)
from torchprof_hooks.profiles.names import CALLED_PHASES, Phase

#: torch's non-reentrant checkpoint leaves a recomputed forward by this exception as
#: soon as it has what it needs. That is not a failure.
STOPS_RECOMPUTATION: Final = "_StopRecomputationError"
#: What no thread is numbered.
_NO_THREAD: Final = -1


class Tracker(Cursor):
    """Measures the forward of every module that one thread calls.

    The thread is at exactly one site at any moment. A module's pre-hook moves it to the
    site of the call, the post-hook closes the call and moves it back: that is what the
    core does. Names, totals and tables are made of that later, outside of the measured
    work.
    """

    def __init__(self, names: ModuleNames | None = None) -> None:
        super().__init__()
        self.names = names or ModuleNames()
        self.outside = self.new_site(None, (), "outside")
        self.site = self.outside
        self.aborted_calls = 0
        self.retired_ns: int | None = None
        #: Whether a module has a hook of its own in place of the one served here.
        self.is_replaced: Callable[[torch.nn.Module], bool] = lambda module: False
        self._unregistered: set[tuple[int, str]] = set()  # code of the caller, class
        # Of each name, as first met; and what profiled function was around it.
        self._paths: dict[str, tuple[str, ...]] = {}
        self._around: dict[str, tuple[str, ...]] = {}

    # What torch calls

    def called_site(self, module: torch.nn.Module) -> Site | None:
        """The site of a call of `module` from the current site, which does not know it
        yet; None if the call is not to be followed."""
        return None if self.looks_away_from(module) else self.find_site(module)

    def module_pre(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """`forward_pre` for a hook on one module, which is given the keywords too."""
        self.forward_pre(module, args)

    def works_here(self) -> bool:
        """Whether the running thread is the one that is followed."""
        return get_ident() == self.thread

    def looks_away_from(self, module: torch.nn.Module) -> bool:
        """Whether a call of `module`, not seen yet from the current site, is not to be
        followed: it is left to a hook of the module's own, or is the compiler's, or a
        part of a compiled region. A region is one owner; what of its inside happens to
        run in Python does not matter."""
        compile_shield.watch()
        around = self.site.living_module()
        return (
            (around is not None and is_compiled_module(around))
            or is_tracing()
            or self.is_replaced(module)
        )

    def forget(self, module: torch.nn.Module) -> None:
        """Ask `looks_away_from` anew at the next call of `module`."""
        for site in self.sites:
            site.children.pop(id(module), None)

    def retire(self) -> None:
        """The followed thread has ended."""
        self.thread = _NO_THREAD
        self.retired_ns = perf_counter_ns()

    # Sites

    def new_site(
        self,
        caller: Site | None,
        path: tuple[str, ...],
        phase: Phase,
        module: torch.nn.Module | None = None,
        function: str | None = None,
    ) -> Site:
        """A site that was not there before."""
        site = Site(len(self.sites), caller, path, phase, module, function)
        self.sites.append(site)
        return site

    def find_site(self, module: torch.nn.Module) -> Site:
        """The site of a call of `module` from the current site, which does not know the
        module yet (or lost it: see `drop_dead_calls`)."""
        self.drop_dead_calls(module)
        caller = self.site
        if id(module) not in caller.children:
            site = self._site_named(self._name(module), self._call_phase(), module)
            # First: after an interrupt in between, the id may be another module's.
            self.names.when_gone(module, _forgetter(caller.children))
            caller.children[id(module)] = site
        return caller.children[id(module)]

    def _site_named(self, name: str, phase: Phase, module: torch.nn.Module) -> Site:
        """A site for `module` at the current site. Modules of one name (replicas, those
        made anew for every step) each need a site while they live; a site whose module
        is gone is used again, so that their number does not grow."""
        caller = self.site
        namesakes = caller.children_by_name.setdefault((name, phase), [])
        for site in namesakes:
            living = site.living_module()
            if living is None or living is module:
                site.adopt(module)
                return site
        site = self.new_site(caller, self._path(name, phase), phase, module)
        namesakes.append(site)
        return site

    def _name(self, module: torch.nn.Module) -> str:
        name = self.names.get(module)
        if name is not None:
            return name
        caller = self.site
        kind = caller.code, class_name(module)
        if kind not in self._unregistered:
            for holder in self._open_modules():
                name = self.names.add_child(module, holder)
                if name is not None:
                    return name
            self._unregistered.add(kind)  # do not search the model for each such call
        enclosing = caller.enclosing
        holds_none = isinstance(enclosing.living_module(), ProfiledFunction)
        is_called = enclosing.module is not None and enclosing.phase in CALLED_PHASES
        if is_called and not holds_none:
            return self.names.add_unregistered(module, enclosing.name)
        return self.names.add_root(module)

    def _path(self, name: str, phase: Phase) -> tuple[str, ...]:
        caller = self.site
        around = profiled_path(caller)
        if caller.phase == phase and not caller.is_recomputation:
            path = (*caller.path, name)
        elif phase == "forward":
            path = (*around, *self._paths.get(name, (name,)))
        else:  # recomputed from within a backward pass: where it was called at first
            path = (*self._around.get(name, ()), *self._paths.get(name, (name,)))
        self._paths.setdefault(name, path[len(around) :])
        self._around.setdefault(name, around)
        return path

    def _call_phase(self) -> Phase:
        """Phase of a module called from the current site."""
        return "forward"

    def _open_modules(self) -> Iterator[torch.nn.Module]:
        """The modules of the open calls, innermost first."""
        for site in self.open_sites():
            module = site.living_module()
            if module is not None:
                yield module

    def open_sites(self) -> Iterator[Site]:
        """The current site and those around it, innermost first, without `outside`."""
        site = self.site
        while site is not self.outside:
            yield site
            site = site.caller

    # Calls that ended without their post-hook

    def unwind_to(self, module: torch.nn.Module) -> Site:
        """Make the call of `module` the current one again, closing calls inside it that
        were left by an exception that torch's hooks do not see. `outside` if it is not
        open: its forward began before this tracker did."""
        if all(site.key != id(module) for site in self.open_sites()):
            return self.outside
        last_ns = self._last_stamp()
        while self.site.key != id(module):
            self.abort_call(last_ns)
        return self.site

    def drop_dead_calls(self, beginning: object = None) -> None:
        """Close calls that are no longer on the Python stack. torch calls no post-hook
        when a forward is left by KeyboardInterrupt or another BaseException.

        beginning: the module or optimizer, or what loads data, whose call is on the
            stack already, but not open yet.
        """
        if self.site is self.outside:
            return
        stack = owners_on_stack()
        if beginning is not None and stack and stack[-1] == id(beginning):
            stack.pop()
        calls = list(self._calls_on_stack())
        frames = iter(stack)
        # Frames of calls that are not followed may lie in between.
        alive = 0
        while alive < len(calls) and calls[-1 - alive].key in frames:
            alive += 1
        if alive < len(calls):
            self.abort_down_to(calls[-1 - alive].caller, self._last_stamp())

    def _calls_on_stack(self) -> Iterator[Site]:
        """Open sites that a frame of this thread must exist for, innermost first."""
        return (site for site in self.open_sites() if site.key != NO_MODULE)

    def abort_call(self, end_ns: int) -> None:
        """Close the current call, which an exception went through."""
        site = self.site
        self.aborted_calls += 1
        self.site = site.caller
        self._book_aborted(site, max(end_ns, site.start_ns))

    def _book_aborted(self, site: Site, end_ns: int) -> None:
        self.book((site.code, site.start_ns, end_ns))

    def abort_down_to(self, site: Site, end_ns: int) -> None:
        """Close calls inside `site` that an exception left open."""
        while self.site is not site and self.site is not self.outside:
            self.abort_call(end_ns)

    def abort_all(self, by_exception: bool) -> None:
        """Close whatever is open: now, if an exception is just leaving it, and else
        when it was last heard of."""
        end_ns = perf_counter_ns() if by_exception else self._last_stamp()
        self.abort_down_to(self.outside, end_ns)

    def count_if_aborted(self) -> None:
        """After a forward that returned nothing: did it return at all?"""
        error = sys.exc_info()[0]
        if error is not None and error.__name__ != STOPS_RECOMPUTATION:
            self.aborted_calls += 1

    def _last_stamp(self) -> int:
        """The latest moment at which the current call is known to have been running:
        what came after belongs to nobody, rather than to a guess."""
        return max(self.site.start_ns, self.last_booked_ns())

    # Reading

    def open_durations(self) -> Iterator[tuple[int, int]]:
        """(code, nanoseconds so far) of the calls that are open right now."""
        end_ns = perf_counter_ns()
        interrupted_ns = 0
        for site in self.open_sites():
            duration = max(end_ns - site.start_ns - interrupted_ns, 0)
            yield site.code, duration
            if site.is_entry:
                interrupted_ns += duration


def _forgetter(children: Any) -> Callable[[int], object]:
    """Removes a dead module from `children`, without a reference to anything else."""
    return lambda key: children.pop(key, None)
