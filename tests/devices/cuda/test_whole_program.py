"""Programs that know nothing of the profiler, on a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.devices.cuda.work import device_ns
from tests.running import python
from torchprof_hooks import Profile
from torchprof_hooks.profiles.memory import MemorySummary

pytestmark = pytest.mark.gpu
STEPS = 8  # all of them are stamped
TIMES: dict[Any, int] = {
    ("Sequential.0", "forward"): 3000,
    ("Sequential.0", "backward"): 50_000,
    ("Sequential.1", "forward"): 7000,
    ("Sequential.1", "backward"): 20_000,
}

PROGRAM = f"""
import json
import torch
from tests.devices.cuda import planted
from tests.devices.cuda.work import Layer

model = torch.nn.Sequential(Layer(3000, 50_000), Layer(7000, 20_000))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.zeros(4, device="cuda", requires_grad=True)
for _ in range({STEPS}):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
names = "waits", "violations", "bad records", "bad times"
print(json.dumps([planted.missing(), *map(planted.number, names)]))
"""


def test_layers_have_their_times(tmp_path: Path) -> None:
    program, saved = tmp_path / "train.py", tmp_path / "profile.json"
    program.write_text(PROGRAM)
    profiler = "-m", "torchprof_hooks", "--save", str(saved)
    done = python(*profiler, str(program), fresh=True)
    alone = python(str(program), fresh=True)

    assert done.stdout == alone.stdout
    assert json.loads(done.stdout) == [[], 0, 0, 0, 0]
    found = device_ns(Profile.load(saved))
    assert found == {place: STEPS * ns for place, ns in TIMES.items()}


def test_its_traced_step_has_the_kernels_of_its_layers(tmp_path: Path) -> None:
    program, saved = tmp_path / "train.py", tmp_path / "profile.json"
    program.write_text(PROGRAM)
    profiler = "-m", "torchprof_hooks", "--device-idle", "--save", str(saved)
    done = python(*profiler, str(program), fresh=True)

    assert json.loads(done.stdout)[0] == [], done.stderr
    step = Profile.load(saved).device_step
    assert step is not None
    [use] = step.devices
    found = {(row.module, row.phase): row.kernels for row in use.kernels}
    # A layer multiplies by its weight, too: twice in backward, where the first one adds
    # to the gradient of its input.
    counts = {place: sum(one.calls for one in found[place]) for place in found}
    assert counts == {
        ("Sequential.0", "forward"): 2,
        ("Sequential.0", "backward"): 4,
        ("Sequential.1", "forward"): 2,
        ("Sequential.1", "backward"): 3,
        ("(optimizer) SGD", "optimizer"): 1,
        ("(outside modules)", "outside"): 2,  # the sum, and a gradient for it
    }
    took = {place: sum(one.busy_ns for one in found[place]) for place in found}
    for place, ns in TIMES.items():
        assert abs(took.pop(place) - ns) <= 1  # Kineto tells begins and durations
    assert set(took.values()) == {0}


MEMORY_PROGRAM = """
import torch
from torch import nn

torch.zeros(1, device="cuda:{index}")  # in use, wherever the model is
layers = nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 300)
model = nn.Sequential(*layers).to("{device}")
optimizer = torch.optim.Adam(model.parameters())
x = torch.zeros(1500, 300, device="{device}")
for _ in range(4):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
print(torch.cuda.max_memory_allocated({index}))
"""


@pytest.mark.parametrize("index", [0, 1])
def test_memory_is_that_of_the_device_that_has_the_model(
    index: int, tmp_path: Path
) -> None:
    memory, peak_bytes = measured_memory(f"cuda:{index}", index, tmp_path)

    assert memory.source == f"cuda:{index}"
    assert memory.peak_bytes == sum(one.bytes for one in memory.at_peak) == peak_bytes
    found = {one.owner: one.bytes for one in memory.at_peak if one.kind == "parameter"}
    layer = 4 * (300 * 300 + 300)
    assert found == {"Sequential.0": layer, "Sequential.2": layer}


def test_memory_of_a_model_on_the_cpu(tmp_path: Path) -> None:
    memory, _ = measured_memory("cpu", 0, tmp_path)

    assert memory.source == "cpu"
    assert memory.peak_bytes > 4 * 1500 * 300


def measured_memory(device: str, index: int, folder: Path) -> tuple[MemorySummary, int]:
    """By the profile, and the most that CUDA's allocator had handed out."""
    program, saved = folder / "train.py", folder / "profile.json"
    program.write_text(MEMORY_PROGRAM.format(device=device, index=index))
    profiler = "-m", "torchprof_hooks", "--memory", "--save", str(saved)
    done = python(*profiler, str(program), fresh=True)
    profile = Profile.load(saved)
    assert profile.not_measured == ()
    assert profile.memory is not None, done.stderr
    return profile.memory, int(done.stdout)
