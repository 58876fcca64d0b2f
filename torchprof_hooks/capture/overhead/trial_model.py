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
from torchprof_hooks.capture.torch_names.modules import call_without_global_hooks

Times = npt.NDArray[Any]

LAYERS: Final = 12
_WIDTH: Final = 16
#: More than what a processor core has next to it for itself.
_SWEPT_BYTES: Final = 1 << 20


class _Quiet(torch.nn.Module):
    """A module that is nobody's business: hooks on all modules do not see its calls,
    nor does what else a program has put in the way of calls."""

    __call__ = call_without_global_hooks()


class Layer(_Quiet):
    """A module that calls one function, without any random numbers: these are the
    program's."""

    def __init__(self, in_python: bool) -> None:
        super().__init__()
        self.in_python = in_python

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return F.relu(value) if self.in_python else value + value


class _Between(torch.autograd.Function):
    """Runs between layers, in forward and in backward, where it takes the time before
    and after it."""

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


_between: Final[Callable[[torch.Tensor, TrialModel], torch.Tensor]] = cast(
    "Any", _Between
).apply


class TrialModel(_Quiet):
    """Layers one after the other.

    sweeps: whether caches are swept before each layer, of data and of code.
    durations_ns: of each layer in the last forward.
    """

    def __init__(self, sweeps: bool) -> None:
        super().__init__()
        self.sweeps = sweeps
        # In no table of modules: there are hooks on registering, too.
        self.layers = [Layer(bool(n % 2)) for n in range(LAYERS)]
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
                value = _between(_between(value, self), self)
            start_ns = perf_counter_ns()
            value = layer(value)
            durations_ns.append(perf_counter_ns() - start_ns)
        return value

    def inside(self, value: torch.Tensor) -> Times:
        """Nanoseconds of the layers' forwards, called past all hooks."""
        durations_ns = []
        for layer in self.layers:
            if self.sweeps:
                value = _between(value, self)
            start_ns = perf_counter_ns()
            value = layer.forward(value)
            durations_ns.append(perf_counter_ns() - start_ns)
        return np.array(durations_ns)

    def backward(self, output: torch.Tensor) -> tuple[Times, Times]:
        """Run the backward of a forward that stopped. Returns nanoseconds in it: of the
        layers, but for the last one; and from one stop to the next where there is no
        layer between them."""
        self.stamps = []
        before = seen_pass_begins()  # and nobody else is to hear of it
        try:
            run_engine(output, torch.ones_like(output))
        finally:
            seen_pass_ends(before)
        stamps = np.array(self.stamps)  # of two stops, a layer, two stops, and so on
        return stamps[4::4] - stamps[3:-1:4], stamps[2::4] - stamps[1::4]

    def sweep(self) -> None:
        """Do what a program does between two modules, if that is wanted."""
        if self.sweeps:
            self._memory.sum()
            product = (self._operand @ self._operand).view(1, -1)
            normal = torch.layer_norm(product, product.shape[1:])
            torch.softmax(normal, -1).exp().cumsum(1).max()


class LayerTimes(NamedTuple):
    """Nanoseconds of the layers' forwards; of their backward but for the last one's;
    and from one node of that to the next that belongs to the same."""

    forward_ns: Times
    backward_ns: Times
    node_ns: Times


def trial_input() -> torch.Tensor:
    """What the model is called with."""
    value = torch.ones(4, _WIDTH, device="cpu", dtype=torch.float32)
    return value.requires_grad_()
