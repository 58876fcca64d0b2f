"""Tips on programs that are known to need them, and on one that does not."""

from __future__ import annotations

from pathlib import Path

from tests.programs import OWN_CLOCK, profiled, written

#: Each operation of torch takes a tenth of a millisecond, and some of them more.
WORKING = (
    OWN_CLOCK
    + """
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

class Working(TorchDispatchMode):
    LONG_MS = {
        "bmm": 3, "_softmax": 3, "mm": 3, "addmm": 3, "_softmax_backward_data": 3,
        "_scaled_dot_product_flash_attention_for_cpu": 3,
    }

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        busy(self.LONG_MS.get(func.__name__.split(".")[0], 0.1))
        return func(*args, **(kwargs or {}))
"""
)

TRAIN = """

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        %s

model = nn.Sequential(nn.Linear(32, 32), Attention(), Attention(), nn.Linear(32, 32))
model.to(torch.%s)
optimizer = torch.optim.Adam(model.parameters(), fused=%s)
batch = torch.ones(2, 8, 32, dtype=torch.%s)
with Working(), torch.autograd.set_detect_anomaly(%s):
    for _ in range(8):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
"""
EAGER = "return (q @ k.transpose(-1, -2) / 32**0.5).softmax(-1) @ v"
FUSED = "return nn.functional.scaled_dot_product_attention(q, k, v)"


def tips(directory: Path, program: str) -> list[str]:
    """Tips on steps after the first, each as one line."""
    options = ("--full", "--ignore-first-call", "--every", "2")
    run = profiled(*options, written(directory, program))
    assert run.code == 0, run.err
    assert run.err.partition("\nProgram profiling\n")[0].count("\nTip: ") == 0
    section = run.err.rpartition("\n\n")[0].rpartition("\n\n")[2]
    found = [tip for tip in ("\n" + section).split("\nTip: ") if tip.strip()]
    return [" ".join(tip.split()) for tip in found]


def the_one(found: list[str], beginning: str) -> str:
    """The one tip that begins like that."""
    (tip,) = (tip for tip in found if tip.startswith(beginning))
    return tip


def test_a_program_that_needs_none(tmp_path: Path) -> None:
    program = WORKING + TRAIN % (FUSED, "float32", True, "float32", False)
    found = tips(tmp_path, program)
    assert found == ["Tips None: nothing that is looked for was found."]


def test_a_program_that_needs_one(tmp_path: Path) -> None:
    program = WORKING + TRAIN % (EAGER, "float32", True, "float32", True)
    [found] = tips(tmp_path, program)
    assert found.startswith("Autograd's anomaly detection was on")


OPTIMIZER = (
    WORKING
    + """
model = nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
with Working():
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
"""
)


def test_an_optimizer(tmp_path: Path) -> None:
    tip = the_one(tips(tmp_path, OPTIMIZER), "AdamW takes ")
    assert tip.endswith(
        " for 2 tensors on cpu: AdamW(..., fused=True) does the same faster."
    )


LOADING = (
    OWN_CLOCK
    + """
import torch
from torch import nn
from torch.utils.data import DataLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        busy(10)
        return torch.ones(4)

model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(Slow(), batch_size=4):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    busy(30)
"""
)


def test_data_loading(tmp_path: Path) -> None:
    found = tips(tmp_path, LOADING)
    the_one(found, "The loop waits for data ")


COMPILING = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        torch._dynamo.graph_break()
        return y.relu()

net = torch.compile(Net(), backend="eager")
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for size in (2, 2, 3, 3):
    optimizer.zero_grad()
    net(torch.ones(size, 4)).sum().backward()
    optimizer.step()
"""


def test_torch_compile(tmp_path: Path) -> None:
    found = tips(tmp_path, COMPILING)
    assert "graph_break()" in the_one(found, "torch.compile broke graphs")
    assert "size mismatch" in the_one(found, "torch.compile compiled code")


RECOMPUTING = (
    OWN_CLOCK
    + """
import torch
from torch import nn
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
)


def test_recomputing(tmp_path: Path) -> None:
    found = tips(tmp_path, RECOMPUTING)
    tip = the_one(found, "Recomputing (activation checkpointing) takes about ")
    assert "the most in Net.slow (" in tip
