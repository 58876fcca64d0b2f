"""Where torch cannot run on the planted CUDA runtime, one line says why."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.devices.cuda import environment


def said(folder: Path, **variables: str) -> str:
    """The one line, of a run that leaves it out."""
    command = [sys.executable, environment.__file__, "2.15.0", str(folder / "venv")]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert done.returncode == environment.LEFT_OUT
    assert done.stderr == ""
    [line] = done.stdout.splitlines()
    return line.partition("left out: ")[2]


def test_no_compiler(tmp_path: Path) -> None:
    assert said(tmp_path, PATH=str(tmp_path)) == "there is no g++"


def test_another_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(environment.LeftOutError, match="on aarch64, not x86-64"):
        environment.make(tmp_path, "2.15.0")


@pytest.mark.thorough
@pytest.mark.slow
def test_no_wheel(tmp_path: Path) -> None:
    line = said(tmp_path, PIP_NO_INDEX="1")
    assert line.startswith("--no-deps torch==2.15.0 is not to be had: ERROR: ")


@pytest.mark.thorough
@pytest.mark.slow
def test_a_torch_without_cuda(tmp_path: Path) -> None:
    wheel = _wheel_without_cuda(tmp_path)
    line = said(tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheel.parent))
    assert line == "this torch 2.15.0 is not built for CUDA"


def _wheel_without_cuda(folder: Path) -> Path:
    """One with no more than torch says of itself."""
    about = "torch-2.15.0.dist-info"
    files = {
        "torch/version.py": "cuda: Optional[str] = None\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    wheel = folder / "torch-2.15.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return wheel
