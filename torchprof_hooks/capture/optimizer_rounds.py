"""Rounds of optimizers: which steps of several optimizers are one training step."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any, Final, NamedTuple

#: After so many steps of one optimizer, we wait no longer for the rest of a round.
#: Critics of GANs step some five times as often as generators.
PATIENCE: Final = 16


class RoundEnd(NamedTuple):
    """How many training steps have ended; and whether an optimizer ended them for which
    the round did not wait."""

    steps: int
    is_new: bool


_ONE: Final = RoundEnd(1, is_new=False)


class OptimizerRounds:
    """Finds rounds of optimizers: each is a training step. A round ends when all
    optimizers of the round before have stepped again, so the one that steps least often
    ends it; those of a GAN make one step together.

    An optimizer that steps for the first time ends a round, too. From then on, rounds
    wait for it, until it dies, or another one has stepped more than `PATIENCE` times
    meanwhile: then these were steps of their own.

    Optimizers that step before `ended` is called again count as stepping together, as
    in a backward pass where each parameter has its own: they end at most one round.

    living: those that have stepped and are not forgotten, by their ids.
    latest: the ids of those that have stepped since `ended` was called.
    """

    def __init__(self) -> None:
        self.living: dict[int, weakref.ref[Any]] = {}
        self._inner: dict[int, weakref.ref[Any]] = {}  # called by others
        self._awaited: set[int] = set()
        self._stepped: Counter[int] = Counter()  # in this round
        self.latest: set[int] = set()

    def knows(self, optimizer: Any) -> bool:
        """Whether `optimizer` has stepped, by itself or in a step of another one, and
        is not forgotten."""
        return id(optimizer) in self.living or id(optimizer) in self._inner

    def stepped(self, optimizer: Any) -> None:
        """`optimizer` has made a step."""
        key = id(optimizer)
        self._inner.pop(key, None)
        if key not in self.living:
            self.living[key] = weakref.ref(optimizer, lambda _: self._remove(key))
        self._stepped[key] += 1
        self.latest.add(key)

    def ended(self) -> RoundEnd:
        """What the optimizers have ended that stepped since this was called last."""
        latest, self.latest = self.latest, set()
        if latest == self._awaited and len(latest) == len(self._stepped):  # usual case
            self._stepped.clear()
            return _ONE
        steps, is_new = 1, not latest <= self._awaited
        if is_new:
            self._awaited |= self._stepped.keys()
        elif self._awaited <= self._stepped.keys():
            self._awaited = set(self._stepped)
        elif max(self._stepped.values(), default=0) > PATIENCE:
            self._awaited = set(self._stepped)
            steps = min(self._stepped.values())
        else:
            return RoundEnd(0, is_new)
        self._stepped.clear()
        return RoundEnd(steps, is_new)

    def inner_stepped(self, optimizer: Any) -> None:
        """`optimizer` has made a step in the step of another one."""
        key = id(optimizer)
        if key not in self._inner:
            self._remove(key)
            forget = self._inner.pop
            self._inner[key] = weakref.ref(optimizer, lambda _: forget(key, None))

    def clear(self) -> None:
        """Wait for none of the optimizers that are known now."""
        for key in list(self.living):
            self._remove(key)

    def _remove(self, key: int) -> None:
        """Forget the optimizer of this id: ids are used again."""
        self.living.pop(key, None)
        self._stepped.pop(key, None)
        self._awaited.discard(key)
        self.latest.discard(key)
