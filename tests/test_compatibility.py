"""What is promised is what is tested, and the page of it shows what came out."""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import torch

from torchprof_hooks.capture.torch_names.tried import TRIED, minor

ROOT = Path(__file__).parent.parent


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "compatibility", ROOT / "docs" / "compatibility.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compatibility = _tool()
MATRIX: list[tuple[str, str]] = list(compatibility.MATRIX)


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_the_page_is_the_one_of_the_records() -> None:
    assert _text("docs/compatibility.md") == compatibility.page(
        compatibility.read_records(), compatibility.read_wheel_records()
    )


def test_no_test_fails_in_any_row_of_the_matrix() -> None:
    records = list(compatibility.read_records())
    run = {(each.torch, each.python.rpartition(".")[0]) for each in records}
    assert run >= set(MATRIX)
    own = torch.__version__.partition("+")[0], platform.python_version()
    # Its own row is the one that is being made, maybe in place of one that had failed.
    others = [each for each in records if (each.torch, each.python) != own]
    assert {each.failed for each in others} == {0}


def test_what_is_tried_is_what_has_rows() -> None:
    """Of other versions, reports say that they were not."""
    rows = (*compatibility.read_records(), *compatibility.read_wheel_records())
    assert {minor(row.torch) for row in rows} == set(TRIED)


def test_the_oldest_torch_of_the_matrix_is_the_oldest_that_is_promised() -> None:
    oldest = min((torch for torch, _ in MATRIX), key=_numbers).removesuffix(".0")

    assert f'"torch>={oldest}"' in _text("pyproject.toml")
    assert f"needs torch {oldest} or newer" in _text("README.md")


def test_the_pythons_of_the_matrix_are_those_that_are_promised() -> None:
    project = _text("pyproject.toml")
    promised = re.findall(r'"Programming Language :: Python :: (\d+\.\d+)"', project)
    tested = sorted({python for _, python in MATRIX}, key=_numbers)

    assert promised == tested
    assert f'requires-python = ">={tested[0]}"' in project
    assert f"With Python {tested[0]} or newer" in _text("README.md")


def test_hosted_tests_run_the_same_matrix() -> None:
    workflow = _text(".github/workflows/test.yml")
    rows = re.findall(r'\{torch: "([\d.]+)", python: "([\d.]+)"\}', workflow)

    assert rows == MATRIX


def test_the_torch_that_this_is_developed_with_is_in_the_matrix() -> None:
    (pinned,) = re.findall(r"^torch==([\d.]+)$", _text("constraints.txt"), re.MULTILINE)

    assert pinned in [torch for torch, _ in MATRIX]


def test_a_record_counts_all_tests_of_all_files(tmp_path: Path) -> None:
    counts = [(7, 1, 1, 2), (5, 0, 0, 0)]
    files = []
    for number, (tests, failures, errors, skipped) in enumerate(counts):
        files.append(tmp_path / f"{number}.xml")
        files[-1].write_text(
            f'<testsuites><testsuite name="pytest" tests="{tests}" errors="{errors}" '
            f'failures="{failures}" skipped="{skipped}"/></testsuites>',
            encoding="utf-8",
        )
    made = compatibility.record(files)

    assert (made.passed, made.failed, made.skipped) == (8, 2, 2)
    assert f"| {made.torch} | {made.python} |" in compatibility.page([made])


def test_a_record_of_a_run_that_did_not_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        compatibility.record([tmp_path / "missing.xml"])


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_an_environment_of_a_torch_is_made_from_nothing(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    plan = subprocess.run(
        ["make", "--dry-run", "test-torch", "TORCH=2.99.0"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    assert "echo 'torch==2.99.0' > build/torch-2.99.0.txt" in plan
    assert "--constraint build/torch-2.99.0.txt torch" in plan
