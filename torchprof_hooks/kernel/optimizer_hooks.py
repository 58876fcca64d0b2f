"""Where optimizers step: torch's hooks for that, and their closures."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, Final

from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchprof_hooks.kernel.attachments import Attachment, leave_out_our_frame
from torchprof_hooks.kernel.torch_names.modules import (
    frames_from,
    is_optimizer_hook,
    remove_optimizer_hooks,
)

#: Where a step's arguments have its closure: at this position, after the optimizer, or
#: under this name.
_POSITION: Final = 1
_NAME: Final = "closure"


class OptimizerHooks(Attachment):
    """One pair of hooks on all optimizers, which notifies its users of each step, by
    `optimizer_pre` and `optimizer_post`.

    Users may come and go at any time, also while a step is notified. But torch's own
    table of hooks must not change while torch goes through it: so the pair is only
    removed outside of steps.

    An optimizer calls its closure to have the loss computed again. That is code of the
    program's, not of the optimizer's: users are notified of it, too, by
    `begin_closure`, which returns a function to call when the closure ends.
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
                listener.optimizer_pre(optimizer)
        return self._with_measured_closure(args, kwargs)

    def _post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling():
            return
        for reference in self._users:
            listener = reference()
            if listener is not None:
                listener.optimizer_post(optimizer)

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
            ends = [listener.begin_closure() for listener in self.users]
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
