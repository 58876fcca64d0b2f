"""From out of memory to the module to checkpoint, as docs/memory.md has it: the
commands are run; and the command that finds the largest batch."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch

from tests.attribution.checkpointed_models import Trained, chain, mlp_block, profiled
from tests.attribution.checkpointed_models import with_batch as sized
from tests.cores import NATIVE_CORE
from tests.documents.docs_samples import LITTLE_MEMORY
from tests.running import profiled as run_by_us
from torchprof_hooks import Profile
from torchprof_hooks.profiles.memory_step import MemoryStep
from torchprof_hooks.program.file_tools import main

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
    return run_by_us("--memory", *flags, *program, OMP_NUM_THREADS="1").err


@pytest.mark.thorough
def test_the_tutorial(tmp_path: Path) -> None:
    ran_out, smaller, checkpointed = LITTLE_MEMORY.values()
    text = told(ran_out)
    assert "\nMemory ran out: " in text
    assert "\nMemory in use when it ran out, by owner\n" in text
    assert "\nTip: Activations were " in text

    plain, changed = tmp_path / "plain.json", tmp_path / "changed.json"
    text = told(smaller, "--save", str(plain))
    assert "\nWhat checkpointing would save in a step\n" in text
    assert "checkpointing CharLM.blocks.*: 8 Block (torch.utils.checkpoint)" in text

    assert "ran out" not in told(checkpointed, steps=2)
    told(f"{smaller} --checkpoint", "--save", str(changed))
    [blocks] = [c for c in step_of(plain).checkpointing if len(c.modules) == 8][:1]
    assert blocks.modules[0] == "CharLM.blocks.0"
    found = step_of(changed).peak_bytes
    assert blocks.peak_bytes == pytest.approx(found, rel=0.05)
    assert found < 0.7 * step_of(plain).peak_bytes


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("batches")
    made = Trained(chain(lambda: mlp_block(32), 4), lambda: torch.randn(64, 32), [])
    found = {size: folder / f"{size}.json" for size in (64, 128)}
    for size, path in found.items():
        profiled(sized(made, size)).save(path)
    return found


def fit(files: dict[int, Path], *more: str) -> list[str]:
    return ["fit", *(f"{size}={path}" for size, path in files.items()), *more]


def test_fit(files: dict[int, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(fit(files, "--memory", "4MB", "--format", "json")) == 0
    document = json.loads(capsys.readouterr().out)
    numbers = document["answers"]["largest_batch"]["numbers"]
    assert numbers["memory_bytes"] == 4 * 2**20
    assert 0.98 * 4 * 2**20 < numbers["peak_bytes"] <= 4 * 2**20
    assert numbers["largest_batch"] > 128
    assert main(fit(files, "--memory", "4.0 mb")) == 0
    first = f"Largest batch within 4.00MB: {numbers['largest_batch']}: a peak of "
    assert first in capsys.readouterr().out
    assert main(fit(files, "--memory", "1000")) == 0
    assert "1000.00B: none: a batch of 1 would have" in capsys.readouterr().out
    assert main(fit(files, "--memory", "16GB")) == 0
    assert "is far from what was measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{64} {128} --memory 4MB", "give a batch size and a file"),
        ("64={64} 128={128} --memory much", "give bytes, such as 16GB"),
        ("0={64} 128={128} --memory 4MB", "not a positive number"),
        ("64={64} 64={128} --memory 4MB", "2 profiles are of batch size 64"),
        ("64={64} 128={64} --memory 4MB", "memory does not grow with the batch"),
        ("64={64} 128=gone.json --memory 4MB", "cannot read gone.json"),
        ("64={64} 128=docs/samples/char_lm.json --memory 4MB", "different programs"),
    ],
)
def test_bad_input(
    arguments: str,
    said: str,
    files: dict[int, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for size, path in files.items():
        arguments = arguments.replace(f"{{{size}}}", str(path))
    try:
        code: object = main(["fit", *shlex.split(arguments)])
    except SystemExit as exit_:
        code = exit_.code
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert said in printed.err
