"""Tells which of several optimizers a training step ends with."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any, Final, NamedTuple

#: Steps of one optimizer after which the rest of a round is not waited for any more: at
#: first, and at most. Not of all: there may be one optimizer for each parameter.
LEAST_PATIENCE: Final = 16
MOST_PATIENCE: Final = 256


class RoundEnd(NamedTuple):
    """How many training steps have ended, and whether with an optimizer that was not
    known before."""

    steps: int
    is_new: bool


class OptimizerRounds:
    """A training step is a round: it ends when all optimizers of the round before have
    stepped again, so that it ends with the one that steps least often; those of a GAN
    make one step together.

    An optimizer that steps for the first time ends a round, too, and is waited for from
    then on; until it dies, or until it has not stepped for so long that it seems to be
    out of use: then the steps of the others were steps of their own. If it does step
    again, the patience doubles as soon as another one steps as well; unless, before
    that, it steps as often itself: then they take turns by epochs.

    Optimizers that step before `ended` is asked again step together, as they do in a
    backward pass if each parameter has its own: they end one round at most.

    Optimizers that others call in their steps do not count.

    living: those that have stepped and are not forgotten, by their ids.
    latest: the ids of those that have stepped since `ended` was asked.
    """

    def __init__(self) -> None:
        self.living: dict[int, weakref.ref[Any]] = {}
        self._inner: dict[int, weakref.ref[Any]] = {}  # called by others
        self._awaited: set[int] = set()
        self._resting: set[int] = set()
        self._stepped: Counter[int] = Counter()  # in this round
        self.latest: set[int] = set()
        self._patience = LEAST_PATIENCE
        self._returned: set[int] = set()  # stepped again after resting, no others since

    def knows(self, optimizer: Any) -> bool:
        """Whether `optimizer` has stepped, in another one's steps or not, and is not
        forgotten."""
        return id(optimizer) in self.living or self.is_inner(optimizer)

    @property
    def only_optimizer(self) -> int:
        """The id of the optimizer, if there is one and no other; or 0."""
        living = list(self.living)  # others may die in between
        return living[0] if len(living) == 1 else 0

    def stepped(self, optimizer: Any) -> None:
        """`optimizer` has made a step."""
        key = id(optimizer)
        self._inner.pop(key, None)
        if key not in self.living:
            self.living[key] = weakref.ref(optimizer, lambda _: self._remove(key))
        self._stepped[key] += 1
        self.latest.add(key)

    def ended(self) -> RoundEnd:
        """What has ended with the optimizers that have stepped since this was asked."""
        latest, self.latest = self.latest, set()
        is_new = not latest <= self._awaited | self._resting
        if self._returned and not latest <= self._returned:
            self._returned = set()
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        if back := latest & self._resting:
            self._resting -= back
            self._returned = back
        if is_new or back:
            self._awaited |= self._stepped.keys()
        elif self._awaited <= self._stepped.keys():
            self._awaited = set(self._stepped)
        elif max(self._stepped.values(), default=0) > self._patience:
            self._resting |= self._awaited - self._stepped.keys()
            self._returned = set()
            self._awaited = set(self._stepped)
            return self._end(min(self._stepped.values()), is_new)
        else:
            return RoundEnd(0, is_new)
        return self._end(1, is_new)

    def is_inner(self, optimizer: Any) -> bool:
        """Whether `optimizer` is known to be called by another one."""
        return id(optimizer) in self._inner

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

    def _end(self, steps: int, is_new: bool) -> RoundEnd:
        self._stepped.clear()
        return RoundEnd(steps, is_new)

    def _remove(self, key: int) -> None:
        """Forget the optimizer of this id: ids are used again."""
        self.living.pop(key, None)
        self._stepped.pop(key, None)
        for kept in (self._awaited, self._resting, self.latest, self._returned):
            kept.discard(key)
