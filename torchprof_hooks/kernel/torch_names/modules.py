"""Private names of ``torch.nn`` and ``torch.optim``: how a module is called, what it
is, and where torch keeps hooks on one module, and on all optimizers."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from traceback import walk_tb
from types import FrameType, FunctionType, TracebackType
from typing import Any, Final, NamedTuple

import torch

from torchprof_hooks.kernel.torch_names import Place

#: Hooks, or what torch knows of them, by their numbers, which are unique.
_Table = OrderedDict[int, Any]
_ON_ONE: Final = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_always_called",
)
_ON_OPTIMIZERS: Final = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


def hide_hooks_of(module: torch.nn.Module, numbers: set[int]) -> Callable[[], None]:
    """Take hooks with these numbers out of the tables of `module` and all in it.
    Returns what puts them back in their old places."""
    tables = [
        table
        for inner in module.modules()
        for table in _tables(inner, _ON_ONE)
        if numbers & table.keys()
    ]
    before = [list(table.items()) for table in tables]
    for table in tables:
        for number in numbers & table.keys():
            del table[number]

    def show() -> None:
        for table, hooks in zip(tables, before, strict=True):
            known = dict(hooks)
            added = [number for number in table if number not in known]
            table.update((n, known[n]) for n in numbers & known.keys())
            # Moved one by one, so that no other thread ever misses a hook of the user.
            for number in (*known, *added):
                if number in table:
                    table.move_to_end(number)

    return show


def is_optimizer_hook(hook: Any) -> bool:
    """Whether `hook` is on all optimizers."""
    return bool(_numbers(_optimizer_tables(), (hook,)))


def remove_optimizer_hooks(hooks: Iterable[Any]) -> None:
    """Take these hooks off all optimizers."""
    _remove(_optimizer_tables(), hooks)


def _optimizer_tables() -> list[_Table]:
    # There is no such module any more when the interpreter is ending.
    module = sys.modules.get(torch.optim.Optimizer.__module__)
    return [] if module is None else _tables(module, _ON_OPTIMIZERS)


def _tables(holder: object, names: Iterable[str]) -> list[_Table]:
    """The tables by these names that `holder`, a module of Python or of torch, has."""
    held = vars(holder)
    return [held[name] for name in names if name in held]


def _numbers(tables: Iterable[_Table], hooks: Iterable[Any]) -> set[int]:
    return {
        number
        for table in tables
        for number, known in list(table.items())
        if any(known is hook for hook in hooks)
    }


def _remove(tables: list[_Table], hooks: Iterable[Any]) -> None:
    for number in _numbers(tables, hooks):
        for table in tables:
            table.pop(number, None)


#: The attribute that torch calls, if it is not None, in place of a module's own
#: implementation of calls: `torch.nn.Module.compile` puts there what it has made.
IMPLEMENTATION: Final = "_compiled_call_impl"
#: The function of torch's that reads this attribute and calls what it finds.
ASKING: Final = "_wrapped_call_impl"
#: Where torch has the attribute. If torch does not look there, no module is measured.
PLACE_OF_IMPLEMENTATION: Final = Place(torch.nn.Module, IMPLEMENTATION)


def interceptor_in_calls() -> Any:
    """The interceptor that we have put in place of that attribute; None if it is not
    there, or somebody else has put something there."""
    found = vars(torch.nn.Module).get(IMPLEMENTATION)
    return found if hasattr(found, "forward_pre") else None


def is_asking(frame: FrameType) -> bool:
    """Whether torch, in this frame, reads the attribute in order to call it. Programs
    may read it, too, to see whether a module is compiled, or to keep what they find."""
    return frame.f_code.co_name == ASKING


def no_implementation() -> Callable[[Any], None]:
    """A getter that finds no implementation, for torch.compile to trace: it may trace
    into this function, but not into others of this package."""

    def nothing(module: Any) -> None:
        return None

    return FunctionType(nothing.__code__.replace(), {"__builtins__": {}})


class _OpenRegion(NamedTuple):
    """position: the number of calls around it.
    task: that of asyncio which has entered it; None: it was in none.
    """

    position: int
    module: torch.nn.Module
    task: Any


class _OpenRegions(threading.local):
    """The regions that a thread is in, outermost first."""

    def __init__(self) -> None:
        self.entered: list[_OpenRegion] = []


_open_regions: Final = _OpenRegions()


def begin_region(module: torch.nn.Module) -> None:
    """Notify hooks that a call of `module` begins, which lasts until `end_region`: its
    forward is a block of code. If torch keeps hooks in other tables, they do not see
    it.

    Raises:
        RuntimeError: a region is open that another task of asyncio has entered, in the
            same thread: all time would be that of the one that was entered last.
    """
    entered, task = _open_regions.entered, _current_task()
    if entered and entered[-1].task not in (None, task):
        raise RuntimeError(
            f"region({_name(module)!r}) begins while region("
            f"{_name(entered[-1].module)!r}) is open in another asyncio task of this "
            "thread: a region must not contain an `await`; put one around each part "
            "between two of them"
        )
    place, position = len(entered), len(modules_on_stack())
    try:
        entered.append(_OpenRegion(position, module, task))
        if (interceptor := interceptor_in_calls()) is not None:
            interceptor.forward_pre(module, ())
        for number, hook in _hooks_of_call(module, "_forward_pre_hooks"):
            if number in vars(module).get("_forward_pre_hooks_with_kwargs", ()):
                hook(module, (), {})
            else:
                hook(module, ())
    except BaseException:
        del entered[place:]
        raise


def end_region(module: torch.nn.Module, by_exception: bool) -> None:
    """Notify hooks that the call which `begin_region` has begun is over, and those
    inside of it.

    by_exception: whether an exception has ended it; then this calls only hooks that ask
        for that (``always_call``), as torch does.

    Raises:
        RuntimeError: a region that began inside of it is still open, as that of a
            generator is which waits at a ``yield``: all time would be that of one.
    """
    entered = _open_regions.entered
    places = [n for n, each in enumerate(entered) if each.module is module]
    if not places:
        return  # it has ended with the one around it, which was refused
    inside = entered[places[-1] + 1 :]
    try:
        _tell_of_end(module, by_exception)
    finally:
        del entered[places[-1] :]
    if inside and not by_exception:
        raise RuntimeError(
            f"region({_name(module)!r}) ends while region({_name(inside[0].module)!r}),"
            " which began inside of it, is open: a region must not contain a `yield` "
            "at which its generator is left for another; put one around each part "
            "between two of them"
        )


def _tell_of_end(module: torch.nn.Module, by_exception: bool) -> None:
    settings = {**vars(torch.nn.modules.module), **vars(module)}
    prefix = "_global_forward_hooks", "_forward_hooks"
    with_kwargs, always = (
        {number for name in prefix for number in settings.get(name + kind, ())}
        for kind in ("_with_kwargs", "_always_called")
    )
    try:
        for number, hook in _hooks_of_call(module, "_forward_hooks"):
            if number in always or not by_exception:
                kwargs: tuple[Any, ...] = ({},) if number in with_kwargs else ()
                hook(module, (), *kwargs, None)
    finally:
        if (interceptor := interceptor_in_calls()) is not None:
            interceptor.forward_post(module, (), None)


def _current_task() -> Any:
    """The task of asyncio that runs in this thread, or None."""
    asyncio = sys.modules.get("asyncio")
    try:
        return None if asyncio is None else asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None


def _name(module: torch.nn.Module) -> str:
    return type(module).__name__


def _hooks_of_call(module: torch.nn.Module, table: str) -> list[tuple[int, Any]]:
    """Hooks on all modules, and on this one."""
    on_all = vars(torch.nn.modules.module).get(f"_global{table}", {})
    return [*on_all.items(), *vars(module).get(table, {}).items()]


def caller_kwargs() -> dict[str, Any]:
    """Keyword arguments of the module call whose *global* forward pre-hook is running.

    Global pre-hooks are not given them, so they are read from the frame of
    ``torch.nn.Module._call_impl``. If torch arranges that differently: no keywords.
    """
    frame: FrameType | None = sys._getframe(1)  # hot: not by `frames_from`
    while frame is not None:
        if frame.f_code is begin_region.__code__:
            break
        if frame.f_code.co_filename == _MODULE_FILE and "kwargs" in frame.f_locals:
            return dict(frame.f_locals["kwargs"])
        frame = frame.f_back
    return {}


def modules_on_stack() -> list[torch.nn.Module]:
    """The modules whose call is on this thread's Python stack, outermost first."""
    modules: list[torch.nn.Module] = []
    frame: FrameType | None = sys._getframe(1)  # hot: not by `frames_from`
    while frame is not None:
        code = frame.f_code
        if code.co_name == _CALLING[0] and code.co_filename == _CALLING[1]:
            modules.append(frame.f_locals["self"])
        frame = frame.f_back
    modules.reverse()
    for position, module, _ in _open_regions.entered:  # they have no frame
        modules.insert(position, module)
    return modules


def modules_left(traceback: TracebackType) -> list[torch.nn.Module]:
    """The modules whose call an exception has left, outermost first."""
    frames = [frame for frame, _ in walk_tb(traceback)]
    return [each.f_locals["self"] for each in frames if _kind(each) == _CALLING]


def forward_around(module: torch.nn.Module) -> torch.nn.Module | None:
    """The outermost module that holds `module`, and whose ``forward`` the program has
    called itself in this thread, which shows nobody a call; None if there is none."""
    found = None
    for frame in frames_from(sys._getframe(1)):
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount:
            holder = frame.f_locals.get(code.co_varnames[0])
            if holder is not module and _holds(holder, module):
                found = holder
    called = map(id, modules_on_stack())
    return None if found is None or id(found) in called else found


def _holds(holder: Any, module: torch.nn.Module) -> bool:
    modules = torch.nn.Module.modules
    is_module = issubclass(type(holder), torch.nn.Module)
    return is_module and any(inner is module for inner in modules(holder))


def has_parameters(module: torch.nn.Module) -> bool:
    """Whether there are any in `module`. No code of its own runs."""
    every = (one._parameters.values() for one in torch.nn.Module.modules(module))
    return any(each is not None for each in itertools.chain.from_iterable(every))


def error_of_call() -> BaseException | None:
    """The exception that has ended the call of whose end a hook is notified now; None
    if the call returned. It is the exception that torch or this package is handling, in
    the call's own frame or further inside. The program may be handling another one
    around the call."""
    error = sys.exc_info()[1]
    if error is None or error.__traceback__ is None:
        return None
    handling = error.__traceback__.tb_frame
    stack = list(frames_from(sys._getframe(1)))
    if all(frame is not handling for frame in stack):
        return error  # handled in C++, by the native interceptor
    for frame in stack:
        if frame.f_code is _tell_of_end.__code__:  # of a block of the program's
            return error if frame.f_locals["by_exception"] else None
        if frame is handling:
            return error
        if _kind(frame) == _CALLING or not _tells_hooks(frame):
            return None
    return None


def _tells_hooks(frame: FrameType) -> bool:
    """Whether the code that runs in a frame is this package's, or torch's module.py."""
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package == _PACKAGE or frame.f_code.co_filename == _MODULE_FILE


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """This frame of a Python stack and those around it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def place_of_caller() -> str:
    """File and line of the innermost code that is neither torch's nor ours:
    "train.py:42"; "" if there is none."""
    for frame in frames_from(sys._getframe(1)):
        file = frame.f_code.co_filename
        if not file.startswith((*_FOLDERS, "<")) or file.startswith(_CELL):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
    return ""


def _kind(frame: FrameType) -> tuple[str, str]:
    """Name and file of the function that runs in a frame."""
    return frame.f_code.co_name, frame.f_code.co_filename


_PACKAGE: Final = __name__.partition(".")[0]

#: IPython calls its cells so: ``<ipython-input-3-1f2e3d4c5b6a>``.
_CELL: Final = "<ipython-input-"
#: The folders of torch and of this package.
_FOLDERS: Final = tuple(
    os.path.dirname(str(vars(sys.modules[name])["__file__"])) + os.sep
    for name in ("torch", _PACKAGE)
)

#: The file of torch's modules. We compare this file, and not function objects, as
#: programs may replace these.
_MODULE_FILE: Final = torch.nn.modules.module.__file__
_CALLING: Final = ("_call_impl", _MODULE_FILE)


def pre_hooks_of(module: torch.nn.Module) -> list[Any]:
    """The forward pre-hooks in a module's own table."""
    return list(module._forward_pre_hooks.values())


def original_module(module: torch.nn.Module) -> torch.nn.Module:
    """What ``torch.compile(module)`` was given to make `module`; others as they are."""
    if type(module).__name__ == "OptimizedModule":
        return module._modules.get("_orig_mod") or module
    return module


def is_replica(module: torch.nn.Module) -> bool:
    """Whether `module` is a copy that DataParallel made for one forward pass."""
    return bool(vars(module).get("_is_replica", False))


def class_name(module: torch.nn.Module) -> str:
    """Name of the class that the user wrote, even if the module is compiled, scripted,
    sharded or parametrized; the wrapper's own name where torch does not keep the
    other."""
    module = original_module(module)
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", type(module).__name__))
    kind = type(module)
    while _is_made_of_another(kind):
        kind = kind.__bases__[-1]
    return kind.__name__


def _is_made_of_another(kind: type) -> bool:
    """Whether torch has made a class at run time by deriving it from the last of its
    bases, with something put before the name: FSDPNet, ParametrizedLinear."""
    home, base = kind.__module__, kind.__bases__[-1]
    return (
        home.startswith("torch.")
        and base is not torch.nn.Module
        and kind.__name__.endswith(base.__name__)
        and kind.__name__ not in vars(sys.modules.get(home, torch))
    )


def any_optimizer_made() -> bool:
    """Whether an optimizer of torch's was ever made in this process: with the first of
    a class, torch wraps ``step`` of the class, and marks it as ``hooked``. If torch
    marks it differently: False; then each backward pass that accumulates gradients
    before the first step of an optimizer counts as a step."""
    kinds: list[type] = [torch.optim.Optimizer]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    return any(getattr(kind.__dict__.get("step"), "hooked", False) for kind in kinds)
