"""Files of profiles: what is saved is read again, and what is damaged is refused, with
the file and the place."""

from __future__ import annotations

import copy
import json
import random
from contextlib import suppress
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from tests.build import FUNCTIONS, STEP, profile_of
from torchprof_hooks import Profile, ProfileFileError
from torchprof_hooks.files.profile_file import provenance_of
from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.collectives import Collective
from torchprof_hooks.profiles.compilation import CompilationSummary, GraphBreak
from torchprof_hooks.profiles.measured_steps import MeasuredSteps
from torchprof_hooks.profiles.memory import MemorySummary, MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.optimizers import OptimizerFacts
from torchprof_hooks.profiles.peak import Peak
from torchprof_hooks.profiles.program import Program, ProgramFacts
from torchprof_hooks.profiles.provenance import Coordinate, Provenance
from torchprof_hooks.profiles.step_times import Bucket, StepTimes
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.profiles.trace.device_idle import IdleRow
from torchprof_hooks.profiles.trace.device_step import DeviceStep, DeviceUse
from torchprof_hooks.profiles.trace.kernels import Kernel, KernelRow

FORWARD: CellKey = (("Net", "linear(2x?)"), "forward")
#: Everything that a file can hold is in it.
FULL = profile_of(
    {
        FORWARD: Totals(
            *(3, 1 << 61, 0, 1, 1 << 60, 1 << 61, 1 << 121, -5),
            memory=MemoryTotals(100, 50, -7, 80),
            flops=1 << 100,
        ),
        (("(outside modules)",), "outside"): Totals(self_ns=-3),
    },
    {
        "Net": ModuleInfo("Net", aliases=("Net.again",), order=1, place="train.py:3"),
        "linear(2x?)": ModuleInfo(
            *("linear", "function", (), True, 2, "C", ("float32@cpu",), "bfloat16"),
            shapes=((2, -1), ()),
        ),
        "(outside modules)": ModuleInfo(kind="outside", order=3),
    },
    steps=5,
    step_times=StepTimes(1, 7, (Bucket(3, 4, 9),), 2, 8, (Bucket(0, 5, 5),), 1, 2),
    first={FORWARD: Totals(1, 2, 0, 1, 2, 2, 4)},
    aborted_calls=1,
    overhead_ns=6,
    measured=MeasuredSteps((0.03, -0.5), 1, 50),
    devices=("cuda:0",),
    memory=MemorySummary("cuda:0", 90, ("Net",), "forward", ""),
    not_measured=("a thing",),
    core="native",
    core_reason="none",
    collectives=(Collective("all_reduce", "default_pg", 4, 3, 100, 5, 6, 7),),
    peak=Peak(10**12, "a data sheet"),
    items=50,
    device_asked=9,
    device_waits=4,
    device_step=DeviceStep(
        3,
        7,
        (
            DeviceUse(
                *("cuda:0", 5, (IdleRow("Net", "forward", 2),), 6),
                (KernelRow(("Net", "Net.a"), "backward", (Kernel("gemm", 2, 6),)),),
            ),
        ),
    ),
    program=Program(
        "train.py",
        99,
        CompilationSummary(graph_breaks=(GraphBreak("f", "x.py:1", "print", 2),)),
        ProgramFacts(
            (OptimizerFacts("SGD", 3, True, False, "cpu", 2, True, True),), True
        ),
    ),
    provenance=(
        Provenance(1, 4, 1, "host", 77, coordinates=(Coordinate("dp", 1, 2),)),
    ),
)


@pytest.mark.parametrize("profile", [FULL, STEP, FUNCTIONS, Profile()])
@pytest.mark.parametrize("kind", [str, Path])
def test_what_is_saved_is_read_again(profile: Any, kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile.save(kind(path))
    read = Profile.load(kind(path))
    assert read == profile
    assert read.provenance == profile.provenance == provenance_of(path)
    assert [part.wall_ns for part in read.parts] == [p.wall_ns for p in profile.parts]


@pytest.mark.parametrize(
    "garbage", [b"", b"{", b"\xff", b"[" * 100_000, b"nothing", b'"text"', b"[]", b"{}"]
)
def test_what_is_no_profile_is_refused(garbage: Any, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(garbage)
    with pytest.raises(ProfileFileError, match=r"profile\.json is not"):
        Profile.load(path)


@pytest.mark.parametrize("version", [6, 8, "7", None, True, 7.5])
def test_another_version_is_refused(version: Any, tmp_path: Path) -> None:
    path = saved(tmp_path, FULL)
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": version}))
    with pytest.raises(ProfileFileError, match=r"profile\.json has version"):
        Profile.load(path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, FULL)
    text = path.read_text()
    for twentieth in range(20):
        path.write_text(text[: len(text) * twentieth // 20])
        with pytest.raises(ProfileFileError, match=r"profile\.json"):
            Profile.load(path)


def saved(folder: Path, profile: Profile) -> Path:
    path = folder / "profile.json"
    profile.save(path)
    return path


#: The place of a value, a wrong one, and what the error says; if nothing, the place.
WRONG: list[tuple[str, Any, str]] = [
    ("parts.0.steps", "3", "parts.0.steps: '3'"),
    ("parts.0.steps", True, ""),
    ("parts.0.name", "middle", "parts.0.name: 'middle'"),
    ("parts.0.cells.path.0", [9], "parts.0.cells"),
    ("parts.0.cells.path.0", [-1], "parts.0.cells"),
    ("parts.0.cells.path.0", [], "parts.0.cells"),
    ("parts.0.cells.path.0", ["Net"], "parts.0.cells"),
    ("parts.0.cells.phase.0", "sideways", "parts.0.cells: 'sideways'"),
    ("parts.0.cells.phase", [], "parts.0.cells"),
    ("parts.0.cells.calls", [1, 2, 3, 4], "parts.0.cells: calls"),
    ("parts.0.cells.calls", 3, "parts.0.cells.calls: 3 is not a JSON list"),
    ("parts.0.cells.calls.0", 1.0, "parts.0.cells.calls: 1.0"),
    ("parts.0.cells.call", [1], "parts.0.cells.call: has no 'call'"),
    ("parts.0.cells", None, ""),
    *(
        (place, number, f"{place.removesuffix('.0')}: .* is out of range")
        for place in ("overhead_ns", "parts.0.wall_ns", "parts.0.cells.min_ns.0")
        for number in (-5, 10**320, 1 << 63)
    ),
    ("parts.0.cells.self_ns.0", 10**320, "parts.0.cells.self_ns: .* out of range"),
    ("parts.0.cells.squares_ns2.0", 10**320, "squares_ns2: .* is out of range"),
    ("parts.1.cells.flops.0", -1, "flops: -1 is out of range"),
    ("modules.linear(2x?).shapes.0.0", 1 << 63, "shapes.0.0: .* is out of range"),
    ("measured.longer.0", float("inf"), "longer.0: inf is not a finite"),
    ("measured.longer.0", 10**320, ""),
    ("parts.0.wall_ns", 17, "add up to .* 17"),
    ("parts", {}, ""),
    ("modules.Net.kind", "thing", "modules.Net.kind: 'thing'"),
    ("modules.Net.order", None, ""),
    ("modules.Net.colour", "red", ""),
    ("modules", {}, "no module is called"),
    ("memory.peak_path", "Net", ""),
    ("devices", [1], ""),
    (
        "program.facts.optimizers.0.parameters",
        "x",
        "program.facts.optimizers.0.parameters: 'x'",
    ),
    ("program.facts.optimizers.0", {"name": "SGD"}, ""),
    ("provenance.0.coordinates", [[]], ""),
    ("wheels", 4, "has no 'wheels'"),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_damaged_file_is_refused_with_the_place(wrong: Any, tmp_path: Path) -> None:
    place, value, said = wrong
    *around, last = [int(key) if key.isdigit() else key for key in place.split(".")]
    path = saved(tmp_path, FULL)
    content = json.loads(path.read_text())
    reduce(getitem, around, content)[last] = value
    path.write_text(json.dumps(content))
    match = rf"profile\.json is damaged: .*{said or place}"
    with pytest.raises(ProfileFileError, match=match):
        Profile.load(path)


def test_a_damaged_file_is_read_or_refused(tmp_path: Path) -> None:
    """Never half read, and never another error."""
    path = saved(tmp_path, FULL)
    whole, chance = json.loads(path.read_text()), random.Random(0)
    for _ in range(500):
        content = copy.deepcopy(whole)
        _damage(content, chance)
        path.write_text(json.dumps(content))
        with suppress(ProfileFileError):
            read = Profile.load(path)
            assert sum(t.self_ns for t in read.cells.values()) == read.wall_ns


def _damage(content: Any, chance: random.Random) -> None:
    """Replace, or take away, a value somewhere."""
    held = content
    while True:
        keys = list(held) if isinstance(held, dict) else range(len(held))
        if not keys:
            return
        key = chance.choice(list(keys))
        inner = held[key]
        if isinstance(inner, (dict, list)) and inner and chance.random() < 0.8:
            held = inner
            continue
        if chance.random() < 0.3:
            del held[key]
        else:
            held[key] = chance.choice([None, -1, 10**30, "x", [], {}, [[]], True, 0.5])
        return


def test_two_cells_of_one_path_and_phase_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, STEP)
    content = json.loads(path.read_text())
    cells = content["parts"][0]["cells"]
    cells["path"][1], cells["phase"][1] = cells["path"][0], cells["phase"][0]
    path.write_text(json.dumps(content))
    with pytest.raises(ProfileFileError, match="the same path and phase"):
        Profile.load(path)
