"""Tells when a step of a training loop, or of any other loop, is over."""

from __future__ import annotations

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
        self._pauses = 0
        self._has_graph = False
        self._is_over = False  # but for the call around

    def optimizer_stepped(self, optimizer: Any, inside_call: bool) -> None:
        """`optimizer` has made a step."""
        steps = self._optimizer_steps
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
            self._end()
        elif site.module is not None and torch.is_grad_enabled():
            self._has_graph = True
        elif site.module is not None and self._is_free():
            self._end()

    def _is_free(self) -> bool:
        return not self._optimizer_steps and not self._has_graph

    def _end(self) -> None:
        self._pauses = 0
        self._has_graph = self._is_over = False
        self._end_step()
