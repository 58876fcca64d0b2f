"""What the bare program has compiled need not be compiled again by us."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.running import Run, plain, profiled, written

PROGRAM = """
import json

import torch
from torch import nn
from torch._dynamo.utils import counters
import torch._inductor.config
torch._inductor.config.compile_threads = 1

model = nn.Linear(4, 4, bias=False)  # for which nothing is compiled in C++
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    compiled(torch.ones(2, 4)).backward(torch.ones(2, 4))
    optimizer.step()
caches = {**counters["inductor"], **counters["aot_autograd"]}
print(json.dumps({name: count for name, count in caches.items() if "_cache_" in name}))
"""


def use_of_caches(done: Run) -> dict[str, int]:
    """How often each was hit or missed."""
    assert done.code == 0, done.err
    found: dict[str, int] = json.loads(done.out.splitlines()[0])
    return found


@pytest.mark.thorough
def test_the_first_profiled_run_hits_what_the_bare_one_has_filled(
    tmp_path: Path,
) -> None:
    program = written(tmp_path, PROGRAM)
    caches = str(tmp_path / "caches")

    # No forks: with torch 2.15, keys of one are not those of the next.
    done = (
        plain(program, fresh=True, TORCHINDUCTOR_CACHE_DIR=caches),
        profiled("--full", program, fresh=True, TORCHINDUCTOR_CACHE_DIR=caches),
    )
    bare, first_profiled = map(use_of_caches, done)
    assert "; torch had 1 of them in a cache" in done[1].err

    missed = {name: n for name, n in bare.items() if name.endswith("_miss")}
    assert missed
    assert first_profiled == {
        name.replace("_miss", "_hit"): n for name, n in missed.items()
    }
