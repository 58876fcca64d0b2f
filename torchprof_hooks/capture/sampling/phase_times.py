"""How long backward passes and optimizers take, where nothing else is seen of steps but
their ends."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ClassVar

from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.engine import engine_patch

if TYPE_CHECKING:
    from torchprof_hooks.capture.backward.backward_pass import PassRequest


class PhaseTimes:
    """Adds up what passes and optimizers take in one thread, each as a whole: by two
    readings of the clock, once or twice in a step. No modules or nodes get hooks.

    passes_ns, optimizers_ns: of all that have ended. A pass that runs inside of another
        one, or an optimizer that another one calls, is a part of the outer one; the
        time in a closure of the program's is not the optimizer's.
    is_on: whether they are timed now.
    thread: the one that is followed.
    """

    backward: ClassVar[None] = None  # nobody looks at nodes
    hears_unseen_passes: ClassVar[bool] = False

    def __init__(self) -> None:
        self.passes: list[int] = []  # when the running ones began
        self.passes_ns = self.optimizers_ns = 0
        self.is_on = False
        self.thread = get_ident()
        self._optimizer, self._began_ns = 0, 0  # the id of the one that steps, or 0

    def open(self) -> None:
        """Begin to time."""
        self.passes.clear()  # what an interrupt has left
        self._optimizer = 0
        self.is_on = True
        attachments.attach(engine_patch, self)

    def close(self) -> None:
        """Time nothing any more."""
        self.is_on = False  # first: an interrupt leaves it attached, but unread
        attachments.detach(engine_patch, self)

    # What the engine tells, and optimizers

    def works_here(self) -> bool:
        """Whether the running thread is the one that is followed."""
        return get_ident() == self.thread

    def begin_pass(self, request: PassRequest, since_ns: int, until_ns: int) -> None:
        """A backward pass is about to begin; if it was prepared, it began with that."""
        self.passes.append(since_ns or perf_counter_ns())

    def end_pass(self, outputs: object, failed: bool) -> None:
        """A backward pass is over."""
        began_ns = self.passes.pop()
        if not self.passes:
            self.passes_ns += perf_counter_ns() - began_ns

    def begin_unseen_pass(self) -> None:
        """A pass has begun that was not started from Python: these are not timed."""

    def optimizer_begins(self, optimizer: Any) -> None:
        """`optimizer` is about to step: again, if an exception ended its last step."""
        is_first = not self._optimizer or self._optimizer == id(optimizer)
        if is_first and self.works_here():
            self._optimizer, self._began_ns = id(optimizer), perf_counter_ns()

    def optimizer_ends(self, optimizer: Any) -> None:
        """`optimizer` has stepped."""
        if self._optimizer == id(optimizer) and self.works_here():
            self.optimizers_ns += perf_counter_ns() - self._began_ns
            self._optimizer = 0

    def begin_closure(self) -> Callable[[], object]:
        """The optimizer calls the program. Returns what is to be called at the end."""
        if not self.works_here():
            return lambda: None
        began_ns = perf_counter_ns()

        def end() -> None:
            self._began_ns += perf_counter_ns() - began_ns

        return end
