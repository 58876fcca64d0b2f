"""What an instrument is, to the kernel."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchprof_hooks.kernel.attachments import Attachment, attachments
from torchprof_hooks.kernel.reading import Reading, Step
from torchprof_hooks.kernel.reference.span_log import Int64s
from torchprof_hooks.kernel.tree import Site

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData
    from torchprof_hooks.profiles.trace.step_trace import GraphLaunches


class Observer:
    """An instrument: it measures something besides the host time of calls, in one
    thread. It overrides what it wants to be notified of; here, nothing is done.

    The kernel follows the thread, notifies observers in their order, at ends of
    something in the reverse order, and asks them for their parts of the profile. An
    observer knows nothing of the kernel but its `reading`, what puts things on torch
    (`attachments.py`) and private names of torch (`torch_names/`), and no other
    observer.

    For example, the tensors that modules return:

        from collections import Counter

        from torchprof_hooks.kernel.callbacks import CallListener
        from torchprof_hooks.kernel.observer import Observer
        from torchprof_hooks.kernel.torch_names.tensors import tensors_in, unnoticed

        class ReturnedTensors(Observer, CallListener):
            def follow(self, reading):
                super().follow(reading)
                self.found, self.of_first_step = Counter(), Counter()
                reading.listen(self, True)

            def returned(self, site, outputs):
                with self.reading.our_work(), unnoticed():
                    self.found[site.code] += len(tensors_in([outputs]))

            def first_step_ended(self):
                self.of_first_step = self.found.copy()

            def columns(self, calls, of_first_step):
                found = self.of_first_step if of_first_step else self.found
                return {"tensors": [found[code] for code in range(len(calls))]}

    ``tensors`` is a field of `Totals` (profiles/totals.py), which says how it is added;
    a `Column` in documents/build/tables.py shows it; and instruments/__init__.py
    chooses observers.

    attachments: what is on torch for it while it observes. It is their user.
    """

    attachments: Sequence[Attachment] = ()

    def follow(self, reading: Reading) -> None:
        """Called once, before anything else."""
        self._reading = weakref.ref(reading)

    @property
    def reading(self) -> Reading:
        """The thread. Whoever follows that has this observer, and so does not refer to
        itself: it is freed, with events and memory, as soon as nobody needs it."""
        found = self._reading()
        assert found is not None
        return found

    def works_here(self) -> bool:
        """Whether the running thread is the followed one, or works for it."""
        return self.reading.works_here()

    def attach(self) -> None:
        """Put its attachments on torch."""
        for attachment in self.attachments:
            attachments.attach(attachment, self)

    def detach(self) -> None:
        """Take them off again."""
        for attachment in self.attachments:
            attachments.detach(attachment, self)

    def detach_in_finalizer(self) -> None:
        """Have them taken off as soon as that can be: finalizers wait for no lock."""
        for attachment in self.attachments:
            attachments.give_up(attachment, self)

    # When it observes

    def began(self) -> None:
        """The kernel follows calls from now on; for the first time, or again."""

    def time_begins(self) -> None:
        """Time counts from now on."""

    def time_ends(self) -> None:
        """Time does not count any more."""

    def ended(self) -> None:
        """The kernel no longer follows calls; for now, or for good. This may be called
        twice."""

    def given_up(self) -> None:
        """Called in place of `ended` in a finalizer: nobody else is left."""

    # Calls of modules, backward passes, optimizers

    def new_call(self, site: Site, module: torch.nn.Module) -> None:
        """A call of `module` is about to begin, the first one at `site`."""

    def pass_begins(self) -> None:
        """A backward pass is about to begin that runs in no other one."""

    def pass_ended(self) -> None:
        """The backward pass is over."""

    def tail_ended(self, duration_ns: int) -> None:
        """How long the tail of a pass took (`Reading.tail`)."""

    def optimizer_begins(self, optimizer: Any) -> None:
        """An optimizer is about to step."""

    def optimizer_ended(self, optimizer: Any, ended_ns: int) -> None:
        """The optimizer has stepped."""

    def closure_begins(self) -> Callable[[], object] | None:
        """The optimizer that steps calls its closure, which is code of the program's.
        Returns what is to be called at the end of that."""

    # Steps

    def step_ended(self, number: int) -> None:
        """A training step is over, maybe in the middle of a call: the one of this
        number, from 1."""

    def first_step_ended(self) -> None:
        """The first one is over: what `columns` gives of it is known by now. Called
        again if it turns out to go on."""

    def between_steps(self, step: Step) -> None:
        """No call is open, between two steps, or after evaluation calls."""

    def take_launches(self) -> list[GraphLaunches]:
        """What it knows of launches of CUDA graphs, by `perf_counter_ns`, since this
        was called last. Called where single spans are kept, after a step."""
        return []

    # The profile. Any thread may ask, at any moment.

    def settle(self) -> None:
        """Make what was measured readable. Called before times are read."""

    def columns(self, calls: Int64s, of_first_step: bool) -> dict[str, Sequence[Any]]:
        """Fields of `Totals`, with a value for each site, by code: its own, without
        those of the sites below. Backward and recomputation are sites of their own.

        calls: how many calls of each site have ended, so far or in the first step.
        of_first_step: whether that is what the values are of, as they were kept in
            `first_step_ended`; the loop is the whole less these.
        """
        return {}

    def added_to(self, profile: ProfileData) -> ProfileData:
        """The profile, with what is known besides."""
        return profile


class Notified:
    """Who is notified of what: the methods that classes of observers override, in the
    order of the observers; of ends, in the reverse order. Nothing is called for what no
    observer wants to know.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        def who(name: str) -> tuple[Callable[..., Any], ...]:
            default = getattr(Observer, name)
            heed = (o for o in observers if getattr(type(o), name) is not default)
            return tuple(getattr(observer, name) for observer in heed)

        self.new_call = who("new_call")
        self.pass_begins = who("pass_begins")
        self.tail_ended = who("tail_ended")
        self.pass_ended = who("pass_ended")[::-1]
        self.optimizer_begins = who("optimizer_begins")
        self.optimizer_ended = who("optimizer_ended")[::-1]
        self.closure_begins = who("closure_begins")
        self.step_ended = who("step_ended")
        self.between_steps = who("between_steps")
