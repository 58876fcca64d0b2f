"""The examples run, and print what the README says they print."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.compiled import DIVIDED
from tests.cores import NATIVE_CORE
from tests.running import python
from torchprof_hooks.kernel.core import CORE

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*arguments: str) -> list[str]:
    done = python("-W", "error", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_language_model() -> None:
    options = ("--steps=3", "--length=5", "--functions", "--memory", "--full")
    lines = run(str(EXAMPLES / "char_lm.py"), *options)
    assert any(line.startswith("step    3  loss") for line in lines)
    words = {line.split()[0] for line in lines if line}
    assert {"torchprof_hooks:", "Hottest", "forward", "backward", "CharLM"} <= words
    report = "\n".join(lines)
    assert "scaled_dot_product_attention" in report
    assert "CharLM.blocks.*.mlp.expand: linear(" in report
    if CORE.name == "native":
        assert "\nMost memory (CPU): " in report


@DIVIDED
@NATIVE_CORE
@pytest.mark.slow
@pytest.mark.thorough  # compiling takes a minute
def test_compiled_language_model(tmp_path: Path) -> None:
    options = ("--steps=3", "--length=0", "--compile", "--full")
    # What is in the user's cache may be of a run in which nobody asked whose kernels
    # these are; and another process may be changing it.
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = python(str(EXAMPLES / "char_lm.py"), *options, environment=environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.partition("Modules of the loop")[2].splitlines()[3:]
    assert lines[0].startswith("CharLM [compiled]   ")
    rows = [(len(line) - len(line.lstrip()), line.split()) for line in lines]
    layers = [words for depth, words in rows if depth == 8 and words[1] == "Linear"]
    assert [words[0] for words in layers] == ["qkv:", "proj:", "expand:", "proj:"] * 4
    for _, _, calls, forward, backward, *_ in layers:
        assert calls == "12"  # ten of these evaluate
        assert forward.endswith(("sec", "ms"))
        assert backward.endswith(("sec", "ms"))
    assert (
        "of the time in compiled code is in kernels of several modules" in done.stdout
    )
    assert "from a cache of torch" not in done.stdout


def test_count_nans() -> None:
    lines = run(str(EXAMPLES / "count_nans.py"))
    # sqrt makes the NaNs; what is called after it sees them.
    assert [line.split(maxsplit=2)[2] for line in lines] == [
        "Sequential.2: softplus",
        ": mean",
    ]


@pytest.mark.thorough  # seconds of imports
def test_trainer() -> None:
    pytest.importorskip("transformers", reason="of the extra `test`")
    lines = run(str(EXAMPLES / "trainer.py"))
    assert lines[0].startswith("torchprof_hooks: LlamaForCausalLM, ")
    assert ", 16 evaluation calls of " in lines[1]
    assert any(line.startswith("LlamaForCausalLM ") for line in lines)


def test_scalars() -> None:
    lines = [line.split() for line in run(str(EXAMPLES / "scalars.py"))]
    assert {step for step, _, _ in lines} == {"40"}
    found = {name: float(value) for _, name, value in lines}
    assert found["steps"] == 40
    assert found["module/Net.blocks._-Linear/backward_ms"] >= 0
    assert found["time/step_ms"] > 0


@pytest.mark.thorough
def test_shared_input() -> None:
    table = [line.split("|")[1:-1] for line in run(str(EXAMPLES / "shared_input.py"))]
    rows = {row[0].strip(): [float(cell) for cell in row[1:]] for row in table[2:]}
    # 805 MFLOP each in truth; the tracker of PyTorch says otherwise for k and v.
    assert [rows[name][1] for name in "qkvo"] == [805, 1342, 1879, 805]
    assert all(rows[name][3] > 0 for name in "qkvo")  # how long: it depends


@pytest.mark.thorough
def test_traced_language_model(tmp_path: Path) -> None:
    arguments = ["--steps=4", "--save-steps=2", "--memory", f"--output-dir={tmp_path}"]
    lines = run(str(EXAMPLES / "trace_char_lm.py"), *arguments)
    assert [line.split(":")[0] for line in lines] == [
        str(tmp_path / "timeline-2.json"),
        str(tmp_path / "timeline-4.json"),
    ]
