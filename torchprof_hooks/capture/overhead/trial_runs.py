"""Runs of a small model, as it is and with the hooks of a tracker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from statistics import median
from typing import Final, cast

import numpy as np
import torch

from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.module_hooks import modules_show_by_seam
from torchprof_hooks.capture.backward.backward_pass import PassRequest
from torchprof_hooks.capture.core import Seam, hooks_of
from torchprof_hooks.capture.overhead.trial_model import (
    BackwardTimes,
    Layer,
    Times,
    TrialModel,
)
from torchprof_hooks.capture.torch_names.module_calls import (
    no_implementation,
    with_implementation,
)
from torchprof_hooks.capture.tracking.tracker import Tracker

_ENOUGH_HOOKS: Final = 4


class TrialRuns:
    """Runs of a model that nobody sees."""

    def __init__(self, model: TrialModel) -> None:
        self.model = model
        self._forward_ns: list[Times] = []
        self._backward: list[BackwardTimes] = []

    @property
    def forward_ns(self) -> Times:
        """The shortest times of the layers, in forward."""
        return shortest(self._forward_ns)

    @property
    def backward(self) -> BackwardTimes:
        """The shortest times in backward, each by itself."""
        return BackwardTimes(*map(shortest, zip(*self._backward, strict=True)))

    def run(self, value: torch.Tensor) -> None:
        """Go forward and backward. Backward is timed between the stops of the forward.
        To keep caches warm, a forward of its own is timed, without stops."""
        model = self.model
        with self._shown():
            if not model.sweeps:
                model(value, stops=False)
            warm_ns = model.durations_ns
            output = cast("torch.Tensor", model(value, stops=True))
            durations_ns = model.durations_ns if model.sweeps else warm_ns
            with self._pass_from(output):
                self._backward.append(model.backward(output))
            self._forward_ns.append(np.array(durations_ns))

    def forget(self) -> None:
        """Runs so far do not count."""
        self._forward_ns.clear()
        self._backward.clear()

    def _shown(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _pass_from(self, output: torch.Tensor) -> AbstractContextManager[object]:
        return nullcontext()


class MeasuredRuns(TrialRuns):
    """Runs of a model whose modules a tracker sees.

    sees_functions: whether the tracker, which must be able to, sees functions as well.
    """

    def __init__(
        self, sweeps: bool, tracker: Tracker, sees_functions: bool = False
    ) -> None:
        self._seam = Seam(no_implementation()) if modules_show_by_seam() else None
        super().__init__(_model(sweeps, self._seam))
        self._tracker = tracker
        self._hooks_ns: list[float] = []
        self._sees_functions = sees_functions

    @property
    def hook_ns(self) -> float:
        """How long a hook took (see `mean_hook_ns`), in the median of the runs: as few
        are timed in each, the shortest would differ between processes."""
        return median(self._hooks_ns) if self._hooks_ns else 0.0

    @property
    def hears_nodes(self) -> bool:
        """Whether the core is told of each node of backward."""
        return any(site.heard for site in self._tracker.sites)

    def run(self, value: torch.Tensor) -> None:
        self._tracker.hooks_ns = self._tracker.hooks_timed = 0
        super().run(value)
        self._hooks_ns.append(mean_hook_ns(self._tracker))

    def forget(self) -> None:
        super().forget()
        self._hooks_ns.clear()

    def innermost_ns(self) -> Times:
        """What the tracker has measured: the shortest time of the call in each layer
        that calls nothing, in forward."""
        log = self._tracker.log
        log.fold()
        called = [
            (site, shortest_ns)
            for site, calls, shortest_ns in zip(
                self._tracker.sites, log.calls, log.min_ns, strict=False
            )
            if calls
            and site.phase == "forward"
            and isinstance(site.enclosing.living_module(), Layer)
        ]
        callers = {site.caller for site, _ in called}
        return np.array([time_ns for site, time_ns in called if site not in callers])

    @contextmanager
    def _shown(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self._seam is not None:
                self._seam.show_to((self._tracker,))
                stack.callback(self._seam.show_to, ())
            else:
                self._put_hooks_on(stack)
            if self._sees_functions:
                stack.enter_context(mode_of(self._tracker))
            yield

    def _put_hooks_on(self, stack: ExitStack) -> None:
        pre, post = hooks_of(self._tracker)
        for module in (self.model, *self.model.layers):
            for handle in (
                module.register_forward_pre_hook(pre),
                module.register_forward_hook(post, always_call=True),
            ):
                stack.callback(handle.remove)

    @contextmanager
    def _pass_from(self, output: torch.Tensor) -> Iterator[None]:
        tracker = self._tracker
        if tracker.backward is None:
            yield
            return
        tracker.begin_pass(PassRequest([output.grad_fn], False, False, -1))
        try:
            yield
        finally:
            tracker.end_pass(None, False)


def _model(sweeps: bool, seam: Seam | None) -> TrialModel:
    if seam is None:
        return TrialModel(sweeps)
    model = with_implementation(TrialModel, seam)
    return model(sweeps, with_implementation(Layer, seam))  # type: ignore[no-any-return]


def mean_hook_ns(tracker: Tracker) -> float:
    """Mean duration of those hooks of `tracker` that were timed; 0 if they are too few
    to tell."""
    timed = tracker.hooks_timed
    return tracker.hooks_ns / timed if timed >= _ENOUGH_HOOKS else 0.0


def shortest(times: Sequence[Times]) -> Times:
    """Of each layer, the shortest time."""
    found: Times = np.min(times, axis=0)
    return found


@contextmanager
def mode_of(tracker: Tracker) -> Iterator[None]:
    """Have the tracker see functions meanwhile."""
    functions = tracker.functions
    assert functions is not None
    attachments.attach(functions.mode_on_stack, tracker)
    try:
        yield
    finally:
        attachments.detach(functions.mode_on_stack, tracker)
