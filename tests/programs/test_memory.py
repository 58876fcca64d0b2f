"""From out of memory to the module to checkpoint, as docs/memory.md has it: the
commands are run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cores import NATIVE_CORE
from tests.documents.docs_samples import LITTLE_MEMORY
from tests.running import TITLE, TRAIN
from tests.running import profiled as run_by_us
from torchprof_hooks import Profile
from torchprof_hooks.documents.report import LINES
from torchprof_hooks.profiles.memory import MemoryStep

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "little_memory.py")

pytestmark = NATIVE_CORE


def step_of(path: Path) -> MemoryStep:
    memory = Profile.load(path).memory
    assert memory is not None
    assert memory.step is not None
    return memory.step


def told(arguments: str, *flags: str, steps: int = 3) -> str:
    """What is said of the example."""
    program = (EXAMPLE, *arguments.split(), f"--steps={steps}")
    return run_by_us("--memory", "--full", *flags, *program, OMP_NUM_THREADS="1").err


def test_memory_prints_the_screen_with_the_peak() -> None:
    """Theano's tables are for those who ask for these."""
    run = run_by_us("--memory", "-c", TRAIN)
    assert (run.code, run.reports) == (0, 1)
    assert TITLE not in run.err
    assert re.search(r"^Most memory .CPU.: \d", run.err, re.MULTILINE)
    assert run.err.count("\n") <= LINES


@pytest.mark.thorough
def test_the_tutorial(tmp_path: Path) -> None:
    ran_out, smaller, checkpointed = LITTLE_MEMORY.values()
    text = told(ran_out)
    assert "\nMemory ran out: " in text
    assert "\nMemory in use when it ran out, by owner\n" in text
    assert "\nTip: Activations were " in text

    plain, changed = tmp_path / "plain.json", tmp_path / "changed.json"
    text = told(smaller, "--full", "--save", str(plain))
    assert "\nWhat checkpointing would save in a step\n" in text
    assert "checkpointing CharLM.blocks.*: 8 Block (torch.utils.checkpoint)" in text

    assert "ran out" not in told(checkpointed, steps=2)
    told(f"{smaller} --checkpoint", "--save", str(changed))
    [blocks] = [c for c in step_of(plain).checkpointing if len(c.modules) == 8][:1]
    assert blocks.modules[0] == "CharLM.blocks.0"
    found = step_of(changed).peak_bytes
    assert blocks.peak_bytes == pytest.approx(found, rel=0.05)
    assert found < 0.7 * step_of(plain).peak_bytes
