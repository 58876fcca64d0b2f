"""Floating-point operations of a training step: `profile(functions=True)`, torch's
FlopCounterMode around the same step, and DeepSpeed's profiler.

The first two have the same formulas, so they must agree wherever the counter has one:
it has none for an LSTM, nor for attention on a CPU in one operator. DeepSpeed counts
forward alone. It counts additions, activations and norms, too: so what is compared is
its number of products, `macs`, times two; but of an LSTM, it knows no products.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import results
import torch
from models import WORKLOADS, Workload
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from torchprof_hooks import profile
from torchprof_hooks.profiles.names import Phase

HEADERS = (
    "",
    "forward",
    "of torch's counter",
    "of DeepSpeed",
    "... all that it counts",
    "backward",
    "of torch's counter",
)


class Case(NamedTuple):
    """A model, and a forward of it."""

    name: str
    model: nn.Module
    loss: Callable[[], Tensor]


class Counted(NamedTuple):
    """Operations of a step; None if they are not counted."""

    forward: int | None = None
    backward: int | None = None
    all_forward: int | None = None


def single_layers() -> list[Case]:
    torch.manual_seed(0)
    made: list[tuple[str, nn.Module, Tensor]] = [
        ("Linear(64, 128)", nn.Linear(64, 128), torch.randn(32, 64)),
        ("Conv2d(8, 16, 3)", nn.Conv2d(8, 16, 3), torch.randn(4, 8, 16, 16)),
        ("LSTM(32, 64)", nn.LSTM(32, 64), torch.randn(10, 4, 32)),
        (
            "TransformerEncoderLayer(64, 4)",
            nn.TransformerEncoderLayer(64, 4, 128, batch_first=True),
            torch.randn(4, 16, 64),
        ),
    ]
    return [Case(name, model, _loss(model, x)) for name, model, x in made]


def _loss(model: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    x.requires_grad_()

    def loss() -> Tensor:
        out: Any = model(x)
        first: Tensor = out[0] if isinstance(out, tuple) else out
        return first.sum()

    return loss


def of_workload(make: Callable[[str], Workload]) -> Case:
    workload = make("cpu")
    return Case(workload.name, workload.model, workload.loss)


def ours(case: Case) -> Counted:
    with profile(functions=True) as prof:
        loss: Any = case.loss()
        loss.backward()
    found: dict[Phase, int] = {}
    for (_, phase), totals in prof.profile.cells.items():
        found[phase] = found.get(phase, 0) + totals.flops
    return Counted(found.get("forward", 0), found.get("backward", 0))


def of_torch(case: Case) -> Counted:
    with FlopCounterMode(display=False) as counter:
        loss: Any = case.loss()
        forward = counter.get_total_flops()
        loss.backward()
    return Counted(forward, counter.get_total_flops() - forward)


def of_deepspeed(case: Case) -> Counted:
    if find_spec("deepspeed") is None:
        return Counted()
    make = import_module("deepspeed.profiling.flops_profiler").FlopsProfiler
    profiler = make(case.model)
    profiler.start_profile()
    case.loss()
    counted = Counted(2 * profiler.get_total_macs(), None, profiler.get_total_flops())
    profiler.end_profile()
    return counted


def row(case: Case) -> list[results.Cell]:
    own, counter, other = ours(case), of_torch(case), of_deepspeed(case)
    return [
        case.name,
        millions(own.forward),
        ratio(own.forward, counter.forward),
        ratio(own.forward, other.forward),
        ratio(own.forward, other.all_forward),
        millions(own.backward),
        ratio(own.backward, counter.backward),
    ]


def millions(count: int | None) -> str:
    return f"{(count or 0) / 1e6:,.2f}"


def ratio(ours: int | None, theirs: int | None) -> str:
    if theirs is None:
        return ""
    return f"{(ours or 0) / theirs:.4f}" if theirs else "it counts none"


def main() -> None:
    cases = [*single_layers(), *map(of_workload, WORKLOADS)]
    rows = [row(case) for case in cases]
    note = (
        "10^6 operations of one step on the CPU, and what they are of the others' "
        "counts. DeepSpeed's products (`macs`, times two), and all that it counts. "
        "torch's counter has no formula for LSTMs, nor for scaled_dot_product_attention"
        " on a CPU: by that, it counts less in transformers."
    )
    table = results.Table("Operations of a step", list(HEADERS), rows, [note])
    results.save("flops", [table], {})


if __name__ == "__main__":
    main()
