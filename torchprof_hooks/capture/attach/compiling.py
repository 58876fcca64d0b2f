"""Hides code and hooks of ours from torch.compile, torch.export and torch.jit.script,
and hears when torch.compile compiles."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from torchprof_hooks.capture.attach.attachments import (
    Attachment,
    Layer,
    Patch,
    attachments,
)
from torchprof_hooks.capture.attach.interception import interception
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.compiler import (
    compilation_context,
    export_contexts,
    has_compiled,
    is_compiler_loaded,
    keep_compiler_out_of,
    script_module_maker,
    unwatch_compilations,
    watch_compilations,
    with_inner,
)
from torchprof_hooks.capture.torch_names.hook_tables import (
    CHECK_FOR_GLOBAL_HOOKS,
    has_other_global_hooks,
    hide_hooks_of,
)
from torchprof_hooks.capture.torch_names.place import Function
from torchprof_hooks.profiles.names import COMPILING_NAME

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker

_PACKAGE: Final = __name__.partition(".")[0]

#: The modules of ours that were exempted, and how many modules Python had then: if it
#: has no more, we do not search them again, which would take too long for a hook.
_exempted: set[str] = set()
_modules_seen = 0


def exempt_from_compilation() -> None:
    """Have torch.compile leave the code of this package alone, if it is in use.

    Where it gives up on a function of the user's, it compiles each function that this
    one calls: our hooks too, and the functions that are measured in them.
    """
    global _modules_seen  # noqa: PLW0603
    if not is_compiler_loaded() or len(sys.modules) == _modules_seen:
        return
    modules = sys.modules.copy()  # other threads may import some
    ours = {name: m for name, m in modules.items() if name.startswith(_PACKAGE)}
    for name in ours.keys() - _exempted:
        keep_compiler_out_of(_code_of(ours[name]))
        _exempted.add(name)
    _modules_seen = len(modules)  # last: an interrupt leaves some to be exempted


def _code_of(module: ModuleType) -> Iterator[CodeType]:
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, FunctionType):
            yield from with_inner(value.__code__)
        elif isinstance(value, type):
            for member in vars(value).values():
                method = member.fget if isinstance(member, property) else member
                function = getattr(method, "__func__", method)
                if isinstance(function, FunctionType):
                    yield from with_inner(function.__code__)


class CompileShield(Attachment):
    """Takes hooks on all modules away for as long as torch.compile compiles something;
    its users are `Subscription`s that are shown modules by hooks.

    If torch.compile saw them, it would compile again as soon as they are removed, or
    replaced. In its thread, there is nothing to measure meanwhile; calls of modules in
    other threads are missed.

    has_missed: whether something was compiled with hooks on, before torch.compile could
        be watched.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_missed = False
        self._lock = threading.RLock()
        self._is_watching = self._was_unwatched = False
        self._show: Callable[[], None] | None = None
        self._callbacks = self._hide, self._show_again

    def watch(self) -> None:
        """Have torch.compile call us: the program may have begun to use it, or it may
        have been reset."""
        exempt_from_compilation()
        attachments.renew(self)
        attachments.renew(compilations)

    def put_on(self) -> None:
        """Be told when torch.compile begins and ends, if it is in use."""
        exempt_from_compilation()
        self._is_watching = watch_compilations(*self._callbacks)
        if self._is_watching and self._was_unwatched:
            self._was_unwatched = False
            self.has_missed = has_compiled()
        elif not self._is_watching:
            self._was_unwatched = True

    def take_off(self) -> bool:
        unwatch_compilations(*self._callbacks)
        self._show_again()  # to nobody
        self._is_watching = self._was_unwatched = False
        return True

    def _hide(self, *compilation: object) -> None:
        with self._lock:
            if self.is_used and self._show is None:
                self._show = interception().hide(self)

    def _show_again(self, *compilation: object) -> None:
        with self._lock:
            show, self._show = self._show, None
            if show is not None:
                show()


class ExportShield(Attachment):
    """Takes hooks on all modules away while torch.export, which refuses hooks, traces a
    model; its users are `Subscription`s that are shown modules by hooks.

    Torch has no hook for that, but it enters a context, which we replace by ours.
    Modules of torch that are imported later import ours from there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._original: Function | None = None

    def put_on(self) -> None:
        """Put our context around torch's, wherever torch has it by now."""
        for place in export_contexts():
            found = place.read()
            if found is None or found == self._exporting:
                continue
            if self._original is None:
                self._original = found
            if found is self._original:
                place.write(self._exporting)

    def take_off(self) -> bool:
        """Put torch's back, unless something else is there."""
        for place in export_contexts():
            if self._original is not None and place.read() == self._exporting:
                place.write(self._original)
        return True

    @contextmanager
    def _exporting(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        assert self._original is not None
        with self._original(*args, **kwargs) as entered:
            show = interception().hide(self)
            try:
                yield entered
            finally:
                show()


def _make_compiling(original: Function, layer: Layer) -> Function:
    @contextmanager
    def install_callbacks(*args: Any, **kwargs: Any) -> Iterator[None]:
        begun: list[tuple[Tracker, Site]] = []
        for tracker in compilations.trackers_here() if layer.is_on else ():
            if tracker.site.phase != "compiling":
                site = tracker.entry_site(COMPILING_NAME, "compiling")
                site.is_region = True
                tracker.open_entry(site)
                begun.append((tracker, site))
        try:
            with original(*args, **kwargs):
                yield
        finally:
            for tracker, site in reversed(begun):
                tracker.leave_entry(site)

    return install_callbacks


def _make_check(original: Function, layer: Layer) -> Function:
    def has_hooks_of_others() -> bool:
        if not layer.is_on:
            return bool(original())
        return has_other_global_hooks(interception().numbers)

    return has_hooks_of_others


def _make_scripting(original: Function, layer: Layer) -> Function:
    def create_script_module(nn_module: Any, *args: Any, **kwargs: Any) -> Any:
        if not layer.is_on:
            return original(nn_module, *args, **kwargs)
        numbers = {n for user in script_patch.users for n in user.numbers}
        show = hide_hooks_of(nn_module, numbers)
        try:
            return original(nn_module, *args, **kwargs)
        finally:
            show(numbers)

    return create_script_module


#: All there are.

#: The context in which torch.compile compiles something, in the thread that waits for
#: it: the time is not that of the call that waits. Its users are trackers.
compilations: Final = Patch(compilation_context, _make_compiling)
compile_shield: Final = CompileShield()
export_shield: Final = ExportShield()

#: torch.compile warns its users when hooks on all modules fire for a compiled module as
#: well. Ours can deal with that: while they are on, torch is told only of other hooks.
#: A filter for warnings would not do: whoever catches warnings copies the filters, and
#: restores them later. Its users are `Subscription`s that are shown modules by hooks.
hushed_warning: Final = Patch(CHECK_FOR_GLOBAL_HOOKS, _make_check)

#: TorchScript would compile the hooks of a module along with it, and cannot compile
#: ours: they are hidden while it looks for hooks. Its users are `ModuleSubscription`s.
script_patch: Final = Patch(script_module_maker, _make_scripting)
