"""A small model to see on what hooks cost: one run of it, timed layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from torchprof_hooks.capture.core import seen_pass_begins, seen_pass_ends
from torchprof_hooks.capture.torch_names.autograd import run_engine
from torchprof_hooks.capture.torch_names.module_calls import QuietModule

Times = npt.NDArray[Any]

LAYERS: Final = 12
#: Nodes of the model's own between two layers; they are torch's, as most of a pass are.
NODES: Final = 2
_WIDTH: Final = 16
#: More than fits into the cache that a processor core has next to it for itself.
_SWEPT_BYTES: Final = 1 << 20


class Layer(QuietModule):
    """A module that calls one function; none that draws random numbers, which would
    change those of the program."""

    def __init__(self, in_python: bool) -> None:
        super().__init__()
        self.in_python = in_python

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return F.relu(value) if self.in_python else value + value


class _Stop(torch.autograd.Function):
    """Stands between layers. In backward, it notes the time when it begins and when it
    ends."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, model: TrialModel) -> torch.Tensor:
        ctx.model = model
        model.sweep()
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        stamps = ctx.model.stamps
        stamps.append(perf_counter_ns())
        ctx.model.sweep()
        stamps.append(perf_counter_ns())
        return *gradients, None


_stop: Final[Callable[[torch.Tensor, TrialModel], torch.Tensor]] = cast(
    "Any", _Stop
).apply

#: Of one stop in a backward pass: when it begins, and when it ends.
_STAMPS: Final = 2
_STOPS: Final = 3


class BackwardTimes(NamedTuple):
    """Nanoseconds between two stops in a backward pass: with a layer in between (one
    node of torch's, and another owner); with `NODES` nodes; with nothing."""

    layers: Times
    nodes: Times
    stops: Times


class TrialModel(QuietModule):
    """Layers one after the other.

    sweeps: whether caches are swept before each layer, of data and of code.
    layer: the class of the layers.
    durations_ns: of each layer in the last forward.
    """

    def __init__(self, sweeps: bool, layer: type[Layer] = Layer) -> None:
        super().__init__()
        self.sweeps = sweeps
        # A list, in which torch does not register them: that would call hooks, too.
        self.layers = [layer(bool(n % 2)) for n in range(LAYERS)]
        self.durations_ns: list[int] = []
        self.stamps: list[int] = []
        self._memory = np.ones(_SWEPT_BYTES // 8)
        # Small, and of one row where it is normalised: what torch divides among threads
        # waits for all of these, which takes long where other programs are running.
        self._operand = torch.ones(16, 16, device="cpu", dtype=torch.float32)

    def forward(self, value: torch.Tensor, stops: bool) -> torch.Tensor:
        """stops: whether something else is done between layers."""
        self.durations_ns = durations_ns = []
        for layer in self.layers:
            if stops:
                value = self._between(value)
            start_ns = perf_counter_ns()
            value = layer(value)
            durations_ns.append(perf_counter_ns() - start_ns)
        return value

    def _between(self, value: torch.Tensor) -> torch.Tensor:
        value = _stop(value, self)
        for _ in range(NODES):
            value = value.neg()
        return _stop(_stop(value, self), self)

    def inside(self, value: torch.Tensor) -> Times:
        """Nanoseconds of the layers' forwards, called past all hooks."""
        durations_ns = []
        for layer in self.layers:
            if self.sweeps:
                value = self._between(value)
            start_ns = perf_counter_ns()
            value = layer.forward(value)
            durations_ns.append(perf_counter_ns() - start_ns)
        return np.array(durations_ns)

    def backward(self, output: torch.Tensor) -> BackwardTimes:
        """Run the backward of a forward with stops. The last layer comes before the
        first stop."""
        self.stamps = []
        before = seen_pass_begins()  # no other tracker is to hear of it
        try:
            run_engine(output, torch.ones_like(output))
        finally:
            seen_pass_ends(before)
        stamps = np.array(self.stamps).reshape(-1, _STOPS, _STAMPS)
        begins, ends = stamps[..., 0], stamps[..., 1]
        return BackwardTimes(
            layers=begins[1:, 0] - ends[:-1, 2],
            nodes=begins[:, 2] - ends[:, 1],
            stops=begins[:, 1] - ends[:, 0],
        )

    def sweep(self) -> None:
        """If wanted, sweep the caches, as a program's work between modules does."""
        if self.sweeps:
            self._memory.sum()
            product = (self._operand @ self._operand).view(1, -1)
            normal = torch.layer_norm(product, product.shape[1:])
            torch.softmax(normal, -1).exp().cumsum(1).max()


def trial_input() -> torch.Tensor:
    """What the model is called with."""
    value = torch.ones(4, _WIDTH, device="cpu", dtype=torch.float32)
    return value.requires_grad_()
