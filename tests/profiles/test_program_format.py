"""Files of whole programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.profiles.test_strata import FUNCTIONS, MODULES, PHASES, WARM_UP
from torchprof_hooks import Peak, Profile
from torchprof_hooks.profiles.program.compilation import (
    CompilationSummary,
    CompileStage,
)
from torchprof_hooks.profiles.program.program_facts import OptimizerFacts, ProgramFacts
from torchprof_hooks.profiles.program.program_profile import (
    ProgramProfile,
    ProgramRates,
)
from torchprof_hooks.profiles.program.strata import Strata
from torchprof_hooks.profiles.trace.device_idle import DeviceIdle, DeviceUse, IdleRow

PROGRAM = ProgramProfile(
    "train.py",
    Strata(WARM_UP, PHASES, MODULES, FUNCTIONS),
    12345,
    overhead_ns=678,
    has_warm_up=False,
    compilation=CompilationSummary(stages=(CompileStage("Dynamo", 5, 1),), timed=1),
    device_idle=DeviceIdle(
        4, 9, (DeviceUse("cuda:0", 5, (IdleRow("Net", "backward", 4),)),)
    ),
    rates=ProgramRates(Peak(10**9, "given as peak_flops"), 32),
    facts=ProgramFacts((OptimizerFacts("SGD", 4, True, False, "cpu"),), True),
)


SGD: dict[str, Any] = {
    "name": "SGD",
    "parameters": 4,
    "can_fuse": True,
    "is_fused": False,
    "device": "cpu",
}


def facts(optimizer: dict[str, Any]) -> dict[str, Any]:
    return {
        "optimizers": [optimizer],
        "detects_anomalies": False,
        "leaves_tf32_unused": False,
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    PROGRAM.save(path)
    return path


def changed(path: Path, **parts: Any) -> Path:
    content = json.loads(path.read_text())
    content["program"].update(parts)
    path.write_text(json.dumps(content))
    return path


def test_it_comes_back_as_it_was(path: Path) -> None:
    assert ProgramProfile.load(path) == PROGRAM


def test_it_is_the_file_of_a_profile_as_well(path: Path) -> None:
    assert Profile.load(path) == PROGRAM.whole


def test_files_from_before_devices_were_looked_at(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["program"]["device_idle"]
    path.write_text(json.dumps(content))
    assert ProgramProfile.load(path) == replace(PROGRAM, device_idle=None)


def test_facts_are_read(path: Path) -> None:
    found = ProgramProfile.load(changed(path, facts=facts(SGD)))
    assert found.facts.optimizers == (OptimizerFacts("SGD", 4, True, False, "cpu"),)


def test_a_profile_of_no_program(path: Path) -> None:
    Profile.load(path).save(path)
    with pytest.raises(ValueError, match="not the profile of a whole program"):
        ProgramProfile.load(path)


@pytest.mark.parametrize(
    "parts",
    [
        {"message": 3},
        {"strata": {}},
        {"has_warm_up": "yes"},
        {"facts": facts({"name": "SGD"})},
        {"facts": facts(SGD) | {"unheard_of": 1}},
        {"facts": facts(SGD) | {"detects_anomalies": "no"}},
        {"facts": facts(SGD | {"parameters": "many"})},
        {"facts": facts(SGD | {"is_fused": 3})},
        {"facts": facts(SGD | {"device": None})},
        {"device_idle": {"step": 4}},
        {"device_idle": {"step": 4, "step_ns": 9, "devices": [], "more": 1}},
        {"device_idle": {"step": 4, "step_ns": 9, "devices": [["cuda:0", 9, []]]}},
        {
            "device_idle": {
                "step": 4,
                "step_ns": 9,
                "devices": [{"device": "cuda:0", "busy_ns": 8, "rows": []}],
            }
        },
        {"compilation": None},
    ],
)
def test_damaged(path: Path, parts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="damaged"):
        ProgramProfile.load(changed(path, **parts))
