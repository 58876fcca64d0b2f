"""What interrupts calls: optimizers that step, waiting for data, and Python's full
collections of garbage."""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, Protocol

from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchprof_hooks.kernel.attachments import (
    Attachment,
    Layer,
    Patch,
    leave_out_our_frame,
)
from torchprof_hooks.kernel.core import (
    CORE,
    around_collection,
    interrupt_by_collections,
)
from torchprof_hooks.kernel.torch_names.checkpoints_and_loaders import (
    LOADER_METHODS,
    LoaderMethod,
)
from torchprof_hooks.kernel.torch_names.compiler import is_tracing
from torchprof_hooks.kernel.torch_names.modules import (
    frames_from,
    is_optimizer_hook,
    remove_optimizer_hooks,
)
from torchprof_hooks.kernel.torch_names.place import Function
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.names import DATA_NAME

if TYPE_CHECKING:
    from torchprof_hooks.kernel.tracker import Tracker

#: Where a step's arguments have its closure: at this position, after the optimizer, or
#: under this name.
_POSITION: Final = 1
_NAME: Final = "closure"


class OptimizerListener(Protocol):
    """What can be told of steps.

    begin_closure: returns a function to call when the closure ends.
    """

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None: ...
    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None: ...
    def begin_closure(self) -> Callable[[], object]: ...


class OptimizerHooks(Attachment):
    """One pair of hooks on all optimizers; its users are `OptimizerListener`s.

    They may come and go at any time, also while they are told of a step. But torch's
    own table of hooks must not change while torch goes through it: so the pair is only
    removed outside of steps.

    An optimizer calls its closure to have the loss computed again. That is code of the
    program's, not of the optimizer's: listeners are told of it, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._hooks = self._pre, self._post  # these: each access binds new ones

    def put_on(self) -> None:
        """Put the pair into torch's tables, as far as it is not there."""
        pre, post = self._hooks
        if not is_optimizer_hook(pre):
            register_optimizer_step_pre_hook(pre)
        if not is_optimizer_hook(post):
            register_optimizer_step_post_hook(post)

    def take_off(self) -> bool:
        """Remove the pair, unless torch may be going through its tables."""
        if _is_running(_HOOKS):
            return False
        remove_optimizer_hooks(self._hooks)
        return True

    def _pre(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return None
        for reference in self._users:
            listener = reference()
            if listener is not None:
                listener.optimizer_pre(optimizer, args, kwargs)
        return self._with_measured_closure(args, kwargs)

    def _post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling():
            return
        for reference in self._users:
            listener = reference()
            if listener is not None:
                listener.optimizer_post(optimizer, args, kwargs)

    def _with_measured_closure(self, args: Any, kwargs: Any) -> Any:
        """The arguments of a step, with its closure measured; None if it has none, for
        which torch leaves the arguments as they are."""
        if len(args) > _POSITION and callable(args[_POSITION]):
            closure = self._measured(args[_POSITION])
            return (*args[:_POSITION], closure, *args[_POSITION + 1 :]), kwargs
        if callable(kwargs.get(_NAME)):
            return args, {**kwargs, _NAME: self._measured(kwargs[_NAME])}
        return None

    def _measured(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(closure)
        def measured_closure(*args: Any, **kwargs: Any) -> Any:
            told = (reference() for reference in self._users)
            ends = [each.begin_closure() for each in told if each is not None]
            try:
                return closure(*args, **kwargs)
            except BaseException as error:
                leave_out_our_frame(error)
                raise
            finally:
                for end in reversed(ends):
                    end()

        return measured_closure


def _is_running(codes: tuple[CodeType, ...]) -> bool:
    """Whether any thread is running one of these functions."""
    # No variable of this call may refer to its own frame: that would be a cycle, with
    # the variables of all callers in it.
    return any(
        frame.f_code in codes
        for innermost in sys._current_frames().values()
        for frame in frames_from(innermost)
    )


_HOOKS: Final = OptimizerHooks._pre.__code__, OptimizerHooks._post.__code__

#: The one pair there is.
optimizer_hooks = OptimizerHooks()


def begin_loading(tracker: Tracker, source: object, gives_batch: bool) -> Site | None:
    """Begin to wait for `source`: an iterator over batches, or a loader that makes one.
    None if this is a part of other loading: a data set may load from another."""
    tracker.close_left_entries()
    if tracker.site.phase == "data":
        if _loads_on_stack() > 1:
            return None
        tracker.abort_call(tracker.last_stamp_ns())  # an interrupt has left it
    site = tracker.entry_site(DATA_NAME, "data", id(source))
    if not gives_batch:
        site = tracker.tree.uncounted(site)
    site.is_loading = not tracker.follows_loading
    tracker.open_entry(site)
    return site


def end_loading(tracker: Tracker, site: Site, loaded: object) -> None:
    """End the wait at `site`: the data is there."""
    tracker.leave_entry(site, loaded)
    tracker.fold_if_due()


def loading_failed(tracker: Tracker, site: Site, error: BaseException) -> None:
    """End the wait at `site` where loading has raised. If there are no more batches,
    the wait is not counted as a call, but its time is booked all the same."""
    now_ns = perf_counter_ns()
    if not isinstance(error, StopIteration):
        tracker.leave_failed(site, now_ns)
    elif tracker.returns_to(site, now_ns):
        tracker.site = tracker.tree.uncounted(site)
        tracker.close_entry(tracker.site)


def _loads_on_stack() -> int:
    """How many loads are on this thread's Python stack, with the one that begins."""
    frames = frames_from(sys._getframe(1))
    return sum(
        frame.f_code.co_name == "load_measured" and frame.f_globals is globals()
        for frame in frames
    )


class LoaderPatch(Patch):
    """Where a loop makes an iterator over a ``DataLoader``, or asks it for batches; its
    users are trackers.

    torch has no hooks for that. So while there are users, this replaces the method that
    every loader ends up in by one that tells the trackers of the running thread and
    then does the same.
    """

    def __init__(self, method: LoaderMethod) -> None:
        super().__init__(method.find, self._make_method)
        self._gives_batches = method.gives_batches

    def _make_method(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def load_measured(source: Any, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or is_tracing() or not layer.is_on:
                return original(source, *args, **kwargs)
            begun: list[tuple[Tracker, Site]] = []
            try:
                for tracker in self.trackers_here():
                    site = begin_loading(tracker, source, self._gives_batches)
                    if site is not None:
                        begun.append((tracker, site))
                loaded = original(source, *args, **kwargs)
            except BaseException as error:
                for tracker, site in reversed(begun):
                    loading_failed(tracker, site, error)
                leave_out_our_frame(error)
                raise
            for tracker, site in reversed(begun):
                end_loading(tracker, site, loaded)
            return loaded

        return load_measured


#: All there are.
loader_patches: Final = tuple(map(LoaderPatch, LOADER_METHODS))


class GarbageCallback(Attachment):
    """Python's callback around collections; its users are trackers.

    A collection begins wherever an object is made, in whichever phase that happens to
    be, maybe in code of ours. Collections of younger objects are short, and rightly on
    the code that makes many objects; the time of a full one depends on all objects that
    the program has.
    """

    def put_on(self) -> None:
        # Before Python 3.12, a collection may begin while torch iterates over its
        # hooks. A callback in Python lets other threads run, and if one of them changes
        # the hooks, torch raises an error. That of the native core lets no thread run.
        is_risky = sys.version_info < (3, 12) and threading.active_count() > 1
        is_heard = around_collection in gc.callbacks
        if not is_heard and not (is_risky and CORE.module is None):
            gc.callbacks.insert(0, around_collection)  # what others do counts, too

    def take_off(self) -> bool:
        while around_collection in gc.callbacks:
            gc.callbacks.remove(around_collection)
        return True

    def users_changed(self) -> None:
        interrupt_by_collections(tuple(self.users))


garbage_callback: Final = GarbageCallback()
