"""Tips on programs that are known to need them, and on one that does not: for
torch.compile, see test_page.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import OWN_CLOCK, profiled, written

HEAD = OWN_CLOCK + "import torch\nfrom torch import nn\n"
#: Each operation of torch takes a tenth of a millisecond, products of matrices more.
WORKING = (
    HEAD
    + """
from torch.utils._python_dispatch import TorchDispatchMode

class Working(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        busy(3 if "mm" in func.__name__ else 0.1)
        return func(*args, **(kwargs or {}))
"""
)

TRAIN = """
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
optimizer = torch.optim.Adam(model.parameters(), fused=True)
with Working(), torch.autograd.set_detect_anomaly(%s):
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.ones(2, 32)).pow(2).mean().backward()
        optimizer.step()
"""

OPTIMIZER = """
layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
optimizers = [torch.optim.AdamW(layer.parameters()) for layer in layers]
with Working():
    for _ in range(8):
        nn.Sequential(*layers)(torch.ones(1, 4)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
"""

LOADING = """
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        busy(10)
        return torch.ones(4)

model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(Slow(), batch_size=4):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    busy(30)
"""

RECOMPUTING = """
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self, milliseconds):
        super().__init__()
        self.fc, self.milliseconds = nn.Linear(4, 4), milliseconds

    def forward(self, x):
        busy(self.milliseconds)
        return self.fc(x).tanh()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.slow, self.fast = Block(30), Block(10)

    def forward(self, x):
        x = checkpoint(self.slow, x, use_reentrant=False)
        return checkpoint(self.fast, x, use_reentrant=False)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(8):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def tips(directory: Path, program: str) -> list[str]:
    """Tips on steps after the first, each as one line."""
    options = ("--full", "--ignore-first-call")
    run = profiled(*options, written(directory, program))
    assert run.code == 0, run.err
    section = run.err.rpartition("\n\n")[2]
    assert run.err.count("Tip: ") == section.count("Tip: ")  # each once
    found = [tip for tip in ("\n" + section).split("\nTip: ") if tip.strip()]
    return [" ".join(tip.split()) for tip in found]


def test_a_program_that_needs_none(tmp_path: Path) -> None:
    found = tips(tmp_path, WORKING + TRAIN % False)
    assert found == ["Tips None: nothing that is looked for was found."]


@pytest.mark.parametrize(
    ("program", "beginning", "details"),
    [
        (WORKING + TRAIN % True, "Autograd's anomaly detection was on", []),
        (
            *(WORKING + OPTIMIZER, "AdamW takes "),
            [" of the loop (", " for 4 tensors of the 2 optimizers of this class"],
        ),
        (HEAD + LOADING, "Waiting for data takes ", []),
        (
            *(HEAD + RECOMPUTING, "Recomputing (activation checkpointing) takes "),
            ["the most in Net.slow ("],
        ),
    ],
    ids=["anomaly detection", "optimizers", "data loading", "recomputing"],
)
def test_a_program_that_needs_one(
    program: str, beginning: str, details: list[str], tmp_path: Path
) -> None:
    found = tips(tmp_path, program)
    [tip] = [tip for tip in found if tip.startswith(beginning)]
    assert all(detail in tip for detail in details), tip
