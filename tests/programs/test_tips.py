"""Tips on a program that is known to need them, and on one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import OWN_CLOCK, profiled, written

#: Each operation of torch takes a tenth of a millisecond; products of matrices, and the
#: last ones of an optimizer, more.
WORKING = (
    OWN_CLOCK
    + """
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

class Working(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        busy(3 if "mm" in func.__name__ or "addc" in func.__name__ else 0.1)
        return func(*args, **(kwargs or {}))
"""
)

NEEDS_NONE = """
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
optimizer = torch.optim.Adam(model.parameters(), fused=True)
with Working():
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.ones(2, 32)).pow(2).mean().backward()
        optimizer.step()
"""

#: Has two optimizers that are not fused, and looks for anomalies.
NEEDS_SOME = """
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
optimizers = [torch.optim.AdamW(layer.parameters()) for layer in net]
with Working(), torch.autograd.set_detect_anomaly(True):
    for _ in range(8):
        net(torch.ones(2, 4)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
"""


def tips(directory: Path, program: str) -> list[str]:
    """Tips on steps after the first, each as one line."""
    options = ("--tables", "--ignore-first-call")
    run = profiled(*options, written(directory, WORKING + program))
    assert run.code == 0, run.err
    section = run.err.rpartition("\n\n")[2]
    assert run.err.count("Tip: ") == section.count("Tip: ")  # each once
    found = [tip for tip in ("\n" + section).split("\nTip: ") if tip.strip()]
    return [" ".join(tip.split()) for tip in found]


def test_a_program_that_needs_none(tmp_path: Path) -> None:
    found = tips(tmp_path, NEEDS_NONE)
    assert found == ["Tips None: nothing that is looked for was found."]


def test_a_program_that_needs_some(tmp_path: Path) -> None:
    found = tips(tmp_path, NEEDS_SOME)
    for beginning, detail in (
        ("Autograd's anomaly detection was on", ""),
        ("AdamW takes ", " for 4 tensors of the 2 optimizers of this class"),
    ):
        [tip] = [tip for tip in found if tip.startswith(beginning)]
        assert detail in tip


#: Compiles for each length, and around a break; and cannot compile all.
COMPILES = """
import torch
from torch import nn

class Net(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        if BREAKS:
            torch._dynamo.graph_break()
        return y.relu()

def backend(graph, inputs):
    if BREAKS and not any("linear" in str(node.target) for node in graph.graph.nodes):
        raise ValueError("no such kernel")
    return graph.forward

torch._dynamo.config.suppress_errors = True
net = torch.compile(Net(4, 4), backend=backend)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for number in range(4):
    net(torch.ones(2 + number * BREAKS, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("breaks", [True, False])
def test_what_torch_compile_does(breaks: bool, tmp_path: Path) -> None:
    program = f"BREAKS = {breaks}\n{COMPILES}"
    run = profiled("--tables", written(tmp_path, program))
    assert run.code == 0, run.err
    told = " ".join(run.err.rpartition("\n\n")[2].split())
    for claim in ("compiled code again", "broke graphs", "gave up"):
        assert (f"Tip: torch.compile {claim} " in told) is breaks
