"""The commands of docs/how_to.md, with those of its libraries that are installed: `make
test-how-tos` makes an environment for each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from torchprof_hooks import Profile, load_ranks
from torchprof_hooks.profiles.data import ProfileData

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = Path(__file__).parent / "scripts"
PAGE: Final = (ROOT / "docs" / "how_to.md").read_text(encoding="utf-8")
OF_RANKS: Final = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
STEPS: Final = 12
OPTIONS_OF_TITAN: Final = (
    "--hf_assets_path model --dataloader.dataset_path texts --training.steps 12 "
    "--training.seq_len 64 --training.local_batch_size 2 --validator.freq 100"
)

pytestmark = pytest.mark.slow


def needs(library: str) -> pytest.MarkDecorator:
    is_missing = find_spec(library) is None
    return pytest.mark.skipif(is_missing, reason="`make test-how-tos` installs it")


def blocks(title: str, language: str, page: str = PAGE) -> list[str]:
    """The blocks in a section of a page."""
    section, _, _ = page.split(f"# {title}\n")[1].partition("\n## ")
    return re.findall(rf"```{language}\n(.*?)\n```", section, re.DOTALL)


def run(command: str, folder: Path, **variables: str) -> str:
    """What a command of the page prints, in a folder, without a network."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    offline = {"HF_HUB_OFFLINE": "1", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600"}
    imported = {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-ec", re.sub(r"^\$ ", "", command, flags=re.MULTILINE)],
        cwd=folder,
        env={**os.environ, **offline, **imported, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed[-8000:]
    return printed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run(f"python {SCRIPTS / 'tiny_model.py'}", tmp_path)
    return tmp_path


def checked(profile: ProfileData, module: str, *, steps: int = STEPS) -> ProfileData:
    """A profile in which a module was called, and everything adds up."""
    assert profile.steps == steps
    assert sum(row.self_ns for row in profile.rows()) == profile.wall_ns
    found = [row.phases for row in profile.rows() if row.name.endswith(module)]
    assert found
    assert found[0]["forward"].calls > 0
    assert not steps or found[0]["backward"].calls > 0
    return profile


TRAINING: Final = """
dataset: {data}
template: default
max_steps: 12
per_device_train_batch_size: 2
eval_strategy: steps
eval_steps: 6
save_strategy: "no"
report_to: none
"""


@needs("llamafactory")
def test_llamafactory(folder: Path) -> None:
    options = (
        "model_name_or_path: model\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
        "dataset_dir: data\nval_size: 0.25\noutput_dir: out\nuse_cpu: true\n"
        "overwrite_output_dir: true\n"
    )
    options += TRAINING.format(data="sums")
    (folder / "train.yaml").write_text(options)
    one, several = blocks("LlamaFactory", "console")
    assert "Where the time goes: " in run(one, folder)
    found = checked(Profile.load(folder / "profile.json"), "layers.0.self_attn")
    assert found.step_times.evaluations == 3 * 2  # also at the end; batches of 8
    assert found.phase_times_ns()["recompute"] > 0

    (folder / "train.yaml").write_text(options + "ddp_backend: gloo\n")
    assert "2 of 2 ranks of" in run(several, folder)
    ranks = load_ranks(folder / "profiles")
    assert "(waiting for gradients)" in {row.name for row in ranks.rows()}
    for rank in ranks.ranks:
        assert rank.steps == STEPS


@needs("swift")
def test_ms_swift(folder: Path) -> None:
    options = (
        "model: model\nmodel_type: llama\ntorch_dtype: float32\ntuner_type: lora\n"
        "gradient_accumulation_steps: 1\nsplit_dataset_ratio: 0.25\noutput_dir: out\n"
    )
    (folder / "sft.yaml").write_text(options + TRAINING.format(data="sums.jsonl"))
    [(folder / "measure.py").write_text(text) for text in blocks("ms-swift", "python")]
    [command] = blocks("ms-swift", "console")
    printed = run(command, folder)
    assert "torchprof_hooks: PeftModelForCausalLM" in printed
    assert ", 32 evaluation calls of " in printed
    [saved] = (folder / "out").glob("*/torchprof.json")
    checked(Profile.load(saved), "layers.0.self_attn")


@needs("torchtitan")
def test_torchtitan(folder: Path) -> None:
    [command] = blocks("torchtitan", "console")
    command = command.replace("--nproc-per-node 8", "--nproc-per-node 1")
    command = command.replace("-m torchtitan.train", str(SCRIPTS / "titan_on_cpu.py"))
    run(f"{command} {OPTIONS_OF_TITAN}", folder)
    found = Profile.load(folder / "profiles" / "profile.json")
    checked(found, "attention.inner_attention")
    assert found.phase_times_ns()["recompute"] > 0


@needs("megatron")
def test_megatron(tmp_path: Path) -> None:
    [command] = blocks("Megatron", "console")
    begun, _ = command.replace("node 8", "node 2").split("pretrain_gpt.py")
    run(begun + str(SCRIPTS / "megatron_core.py"), tmp_path)
    group = "TENSOR_MODEL_PARALLEL_GROUP"
    for rank in load_ranks(tmp_path / "profiles").ranks:
        assert any(group in each.group for each in rank.collectives)
    found = Profile.load(tmp_path / "profiles" / "profile-rank0.json")
    checked(found, "layers.0.self_attention.linear_qkv", steps=6)


@needs("vllm")
def test_vllm(folder: Path) -> None:
    [program] = blocks("vLLM", "python")
    (folder / "offline.py").write_text(program)
    [command] = blocks("vLLM", "console")
    run(command, folder, VLLM_CPU_KVCACHE_SPACE="1")
    found = Profile.load(folder / "profile.json")
    checked(found, "layers.0.self_attn.attn", steps=0)
    calls = {row.name: row.calls for row in found.rows()}
    assert found.step_times.evaluations == 3 * calls["Sampler"]


@needs("ray")
def test_ray_train(tmp_path: Path) -> None:
    programs = blocks("However ranks are started", "python", OF_RANKS)
    [program] = [each for each in programs if "ray.train" in each]
    folder = tmp_path / "profiles"
    folder.mkdir()
    program = program.replace("/shared/profiles", str(folder))
    (tmp_path / "program.py").write_text(program)
    run("python program.py", tmp_path)
    assert [rank.steps for rank in load_ranks(folder).ranks] == [20, 20]
