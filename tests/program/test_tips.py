"""Tips on programs that are known to need them, and on one that does not."""

from __future__ import annotations

from pathlib import Path

from tests.program.test_program import profiled, written

TRAIN = """
import torch
from torch import nn

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
batch = torch.ones(16, 256, 32, dtype=torch.%s)
with torch.autograd.set_detect_anomaly(%s):
    for _ in range(8):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
"""
EAGER = "return (q @ k.transpose(-1, -2) / 32**0.5).softmax(-1) @ v"
FUSED = "return nn.functional.scaled_dot_product_attention(q, k, v)"


def tips(directory: Path, program: str) -> list[str]:
    """Tips on steps after the first, each as one line."""
    arguments = ["--ignore-first-call", "--every", "2", written(directory, program)]
    run = profiled(*arguments)
    assert run.code == 0, run.err
    section = run.err.partition("\nTips\n---\n")[2].rstrip()
    assert section
    return [
        " ".join(tip.split()) for tip in ("\n" + section).split("\n  - ") if tip.strip()
    ]


#: On a machine that has other things to do, that may be seen of any program.
OTHER_CODE = "After the first step, about "


def the_one(found: list[str], beginning: str) -> str:
    """The one tip that begins like that."""
    (tip,) = (tip for tip in found if tip.startswith(beginning))
    return tip


def test_a_program_that_needs_none(tmp_path: Path) -> None:
    program = TRAIN % (FUSED, "float32", True, "float32", False)
    found = tips(tmp_path, program)
    none = "None: nothing that is looked for was found."
    assert [tip for tip in found if not tip.startswith(OTHER_CODE)] in ([none], [])


def test_a_program_that_needs_several(tmp_path: Path) -> None:
    program = TRAIN % (EAGER, "float64", True, "float64", True)
    found = tips(tmp_path, program)
    the_one(found, "Autograd's anomaly detection was on")
    modules = "2 modules (Attention)"
    the_one(found, f"Attention as matmul, softmax and matmul in {modules} takes ")
    double = the_one(found, "Functions with float64 inputs take about ")
    assert "the most in Sequential." in double


OPTIMIZER = """
import torch
from torch import nn
model = nn.Linear(1000, 1000)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(8):
    optimizer.zero_grad()
    model(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
"""


def test_an_optimizer(tmp_path: Path) -> None:
    tip = the_one(tips(tmp_path, OPTIMIZER), "AdamW takes ")
    assert tip.endswith(
        " for 2 tensors on cpu: AdamW(..., fused=True) does the same faster."
    )


LOADING = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(4)

model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(Slow(), batch_size=4):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    _ = time.sleep(0.03)
"""


def test_data_loading_and_other_code(tmp_path: Path) -> None:
    found = tips(tmp_path, LOADING)
    the_one(found, "The loop waits for data ")
    the_one(found, OTHER_CODE)


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


RECOMPUTING = """
import time
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.fc, self.seconds = nn.Linear(4, 4), seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return self.fc(x).tanh()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.slow, self.fast = Block(0.03), Block(0.01)

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


def test_recomputing(tmp_path: Path) -> None:
    found = tips(tmp_path, RECOMPUTING)
    tip = the_one(found, "Recomputing (activation checkpointing) takes about ")
    assert "the most in Net.slow (" in tip
