"""What is in the package for the page, and how it came there."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from torchprof_hooks.reports.program.part import PHASE_TITLES

ROOT = Path(__file__).parents[3]
ASSETS = ROOT / "torchprof_hooks" / "reports" / "html" / "assets"
SOURCES = ROOT / "page"


def test_the_bundle_is_small_and_can_stand_in_a_page() -> None:
    bundle = (ASSETS / "page.js").read_text()
    assert len(bundle) < 400_000
    assert bundle.isascii()
    assert "</script" not in bundle.lower()
    assert "<!--" not in bundle


def test_all_phases_have_colours() -> None:
    style = (ASSETS / "page.css").read_text()
    for phase in PHASE_TITLES:
        assert f".phase-{phase} {{" in style


def test_licences_name_all_that_is_in_the_bundle() -> None:
    text = (ASSETS / "LICENSES.txt").read_text()
    wanted = json.loads((SOURCES / "package.json").read_text())["dependencies"]
    locked = json.loads((SOURCES / "package-lock.json").read_text())["packages"]
    for name in wanted:
        assert f"{name} {locked[f'node_modules/{name}']['version']}\n" in text


def test_the_bundle_is_that_of_the_sources(tmp_path: Path) -> None:
    if not (SOURCES / "node_modules").is_dir() or shutil.which("node") is None:
        pytest.skip("needs node and `npm ci` in page/")
    command = ["node", "build.mjs", str(tmp_path)]
    subprocess.run(command, cwd=SOURCES, check=True)
    for name in ("page.js", "LICENSES.txt"):
        assert (tmp_path / name).read_text() == (ASSETS / name).read_text()
