"""Tells when a step of a training loop, or of any other loop, is over."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import torch

from torchprof_hooks.capture.site import Site

#: Calls and backward passes after which a step is over without an optimizer.
LONGEST_STEP: Final = 64


class StepRhythm:
    """Calls `end_step` at the end of each step.

    A step ends with that of the optimizer; of several, with that of the one which steps
    least often, so that a GAN's discriminator and generator are in one step. Before the
    first optimizer has stepped, each outermost module call without gradients is a step,
    unless a graph is waiting for its backward pass. When no optimizer has stepped for
    `LONGEST_STEP` calls and passes, the program does something else by now, and all
    that is forgotten.
    """

    def __init__(self, end_step: Callable[[], object]) -> None:
        self._end_step = end_step
        self._optimizer_steps: Counter[int] = Counter()  # the one seen first is first
        self._living: dict[int, weakref.ref[Any]] = {}
        self._pauses = 0
        self._has_graph = False
        self._is_over = False  # but for the call around

    def optimizer_stepped(self, optimizer: Any, inside_call: bool) -> None:
        """`optimizer` has made a step."""
        steps = self._optimizer_steps
        if not self.knows(optimizer):
            self._watch(optimizer)
        steps[id(optimizer)] += 1
        if id(optimizer) == min(reversed(steps), key=steps.__getitem__):
            if inside_call:
                self._is_over = True
            else:
                self._end()

    def paused(self, site: Site) -> None:
        """An outermost call or pass has ended at `site`."""
        if site.phase not in ("forward", "backward"):
            return
        self._pauses += 1
        if self._is_over:
            self._end()
        elif self._pauses >= LONGEST_STEP:
            self._optimizer_steps.clear()
            self._living.clear()
            self._end()
        elif site.module is not None and torch.is_grad_enabled():
            self._has_graph = True
        elif site.module is not None and self._is_free():
            self._end()

    def knows(self, optimizer: Any) -> bool:
        """Whether `optimizer` has stepped, and is not forgotten."""
        return id(optimizer) in self._optimizer_steps

    def _watch(self, optimizer: Any) -> None:
        """Do not wait for `optimizer` once it is gone: ids are used again."""
        key = id(optimizer)

        def forget(reference: object) -> None:
            self._optimizer_steps.pop(key, None)
            self._living.pop(key, None)

        self._living[key] = weakref.ref(optimizer, forget)

    @property
    def has_optimizer(self) -> bool:
        """Whether steps are those of an optimizer."""
        return bool(self._optimizer_steps)

    @property
    def only_optimizer(self) -> int:
        """The id of the optimizer, if there is one and no other; or 0."""
        [only, *others] = self._optimizer_steps or [0]
        return 0 if others else only

    def _is_free(self) -> bool:
        return not self.has_optimizer and not self._has_graph

    def _end(self) -> None:
        self._pauses = 0
        self._has_graph = self._is_over = False
        self._end_step()
