from __future__ import annotations

import json
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.helpers import hand_built, own
from torchprof_hooks import Profile
from torchprof_hooks.profiles.memory import MemorySummary, MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.step_times import Bucket, StepTimes
from torchprof_hooks.profiles.totals import Totals

OUTSIDE = "(outside modules)"
PROFILE = hand_built(
    {
        ("Net", "forward"): own(10, calls=2),
        ("Net > Net.ä", "backward"): Totals(
            3, 30, 0, 4, 20, 34, 10**20, 7, memory=MemoryTotals(-9, 8, 0, 10**18)
        ),
        ("Net > linear(2)", "recompute"): Totals(1, 6, flops=10**20),
        ("(data loading)", "data"): own(9, calls=2),
        ("(outside modules)", "outside"): own(5, calls=0),
    },
    {
        "Net": "Net",
        "Net.ä": ModuleInfo(
            "Linear", "module", ("Net.b", "Net.c"), compiled=True, order=1
        ),
        "(outside modules)": ModuleInfo(kind="outside"),
        "(data loading)": ModuleInfo(kind="data"),
        "linear(2)": ModuleInfo(
            "linear",
            "function",
            order=4,
            implementation="C",
            inputs=("float32@cpu", "float64@cpu"),
        ),
    },
    steps=2,
    aborted_calls=1,
    overhead_ns=3,
    devices=("cuda",),
    memory=MemorySummary("cpu", True, 77, ("Net", "Net.ä"), "backward", "no counter"),
    undivided_passes=4,
)

#: Files that versions 1 and 2 of the format wrote.
OLD_FILE = """{
 "format": "torchprof_hooks profile",
 "version": 1,
 "wall_ns": 45, "steps": 2, "aborted_calls": 1, "overhead_ns": 3,
 "devices": ["cuda"],
 "modules": {
  "Net": {"class_name": "Net", "kind": "module", "aliases": [],
          "compiled": false, "order": 0},
  "Net.\\u00e4": {"class_name": "Linear", "kind": "module",
                 "aliases": ["Net.b", "Net.c"], "compiled": true, "order": 1},
  "(outside modules)": {"class_name": "", "kind": "outside", "aliases": [],
                        "compiled": false, "order": 0}
 },
 "cells": [
  {"path": ["Net"], "phase": "forward", "calls": 2, "self_ns": 10, "min_ns": 0,
   "max_ns": 0, "duration_ns": 0, "squares_ns2": 0, "device_self_ns": 0},
  {"path": ["Net", "Net.\\u00e4"], "phase": "backward", "calls": 3, "self_ns": 30,
   "min_ns": 4, "max_ns": 20, "duration_ns": 34, "squares_ns2": 100000000000000000000,
   "device_self_ns": 7},
  {"path": ["(outside modules)"], "phase": "outside", "calls": 0, "self_ns": 5,
   "min_ns": 0, "max_ns": 0, "duration_ns": 0, "squares_ns2": 0, "device_self_ns": 0}
 ]
}"""
VERSION_2_FILE = """{
 "format": "torchprof_hooks profile",
 "version": 2,
 "wall_ns": 46, "steps": 2, "aborted_calls": 1, "undivided_passes": 4,
 "overhead_ns": 3,
 "devices": ["cuda"],
 "memory": {"source": "cpu", "is_net": true, "peak_bytes": 77,
            "peak_path": ["Net"], "peak_phase": "backward",
            "unavailable": "no counter"},
 "modules": {
  "Net": {"class_name": "Net", "kind": "module", "aliases": [],
          "compiled": false, "order": 0},
  "linear(2)": {"class_name": "linear", "kind": "function", "aliases": [],
                "compiled": false, "order": 3}
 },
 "cells": [
  {"path": ["Net"], "phase": "backward", "calls": 3, "self_ns": 40, "min_ns": 4,
   "max_ns": 20, "duration_ns": 34, "squares_ns2": 600, "device_self_ns": 7,
   "memory": {"used_bytes": -9, "acquired_bytes": 8, "retained_bytes": 0,
              "peak_bytes": 12}},
  {"path": ["Net", "linear(2)"], "phase": "recompute", "calls": 1, "self_ns": 6,
   "min_ns": 0, "max_ns": 0, "duration_ns": 0, "squares_ns2": 0, "device_self_ns": 0}
 ]
}"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profile.json"


def content() -> Any:
    """What `save` writes for `PROFILE`, to be spoiled."""
    return {
        "format": "torchprof_hooks profile",
        "version": 5,
        "wall_ns": 60,
        "steps": 2,
        "aborted_calls": 1,
        "undivided_passes": 4,
        "overhead_ns": 3,
        "devices": ["cuda"],
        "memory": {
            "source": "cpu",
            "is_net": True,
            "peak_bytes": 77,
            "peak_path": ["Net", "Net.ä"],
            "peak_phase": "backward",
            "unavailable": "no counter",
        },
        "modules": {
            "Net": module("Net", "module", 0),
            "Net.ä": {
                **module("Linear", "module", 1),
                "aliases": ["Net.b", "Net.c"],
                "compiled": True,
            },
            "(outside modules)": module("", "outside", 0),
            "(data loading)": module("", "data", 0),
            "linear(2)": {
                **module("linear", "function", 4),
                "implementation": "C",
                "inputs": ["float32@cpu", "float64@cpu"],
            },
        },
        "cells": {
            "names": ["Net", "Net.ä", "linear(2)", "(data loading)", OUTSIDE],
            "path": [[0], [0, 1], [0, 2], [3], [4]],
            "phase": ["forward", "backward", "recompute", "data", "outside"],
            "calls": [2, 3, 1, 2, 0],
            "self_ns": [10, 30, 6, 9, 5],
            "min_ns": [0, 4, 0, 0, 0],
            "max_ns": [0, 20, 0, 0, 0],
            "duration_ns": [0, 34, 0, 0, 0],
            "squares_ns2": [0, 10**20, 0, 0, 0],
            "device_self_ns": [0, 7, 0, 0, 0],
            "used_bytes": [0, -9, 0, 0, 0],
            "acquired_bytes": [0, 8, 0, 0, 0],
            "peak_bytes": [0, 10**18, 0, 0, 0],
            "flops": [0, 0, 10**20, 0, 0],
        },
    }


#: The columns that cells may do without.
OPTIONAL_COLUMNS = {
    *("names", "device_self_ns", "flops"),
    *("used_bytes", "acquired_bytes", "peak_bytes"),
}


def module(class_name: str, kind: str, order: int) -> Any:
    return {"class_name": class_name, "kind": kind, "order": order}


def test_save_writes_the_documented_content(path: Path) -> None:
    PROFILE.save(path)

    assert json.loads(path.read_bytes()) == content()


@pytest.mark.parametrize("kind", [str, Path])
def test_what_is_saved_can_be_loaded(kind: Callable[[Path], str], path: Path) -> None:
    PROFILE.save(kind(path))

    assert Profile.load(kind(path)) == PROFILE


def test_what_measuring_took_is_written_where_it_took_something(path: Path) -> None:
    spent = replace(PROFILE.cells[("Net",), "forward"], overhead_ns=4)
    cells = {**PROFILE.cells, (("Net",), "forward"): spent}
    replace(PROFILE, cells=cells).save(path)

    expected = content()
    expected["cells"]["overhead_ns"] = [4, 0, 0, 0, 0]
    assert json.loads(path.read_bytes()) == expected
    assert Profile.load(path).cells == cells


def test_what_was_not_measured_is_written_if_there_was_something(path: Path) -> None:
    profile = replace(PROFILE, unmeasured_steps=7, unmeasured_ns=800)
    profile.save(path)

    expected = {**content(), "unmeasured_steps": 7, "unmeasured_ns": 800}
    assert json.loads(path.read_bytes()) == expected
    assert Profile.load(path) == profile


STEP_TIMES = StepTimes(1, 90, (Bucket(2, 2, 40), Bucket(9, 3, 10**18)), 7, 14)


def test_times_of_steps_are_written_if_there_are_some(path: Path) -> None:
    waits = (Bucket(0, 2, 0), Bucket(5, 1, 50))
    step_times = STEP_TIMES._replace(
        waits=waits, first_evaluations=1, first_evaluation_ns=8
    )
    profile = replace(PROFILE, step_times=step_times)
    profile.save(path)

    times = {
        "first_steps": 1,
        "first_ns": 90,
        "later": [
            {"number": 2, "steps": 2, "total_ns": 40},
            {"number": 9, "steps": 3, "total_ns": 10**18},
        ],
        "evaluations": 7,
        "evaluation_ns": 14,
        "waits": [
            {"number": 0, "steps": 2, "total_ns": 0},
            {"number": 5, "steps": 1, "total_ns": 50},
        ],
        "first_evaluations": 1,
        "first_evaluation_ns": 8,
    }
    assert json.loads(path.read_bytes()) == {**content(), "step_times": times}
    assert Profile.load(path) == profile


@pytest.mark.parametrize(
    "times",
    [
        {},
        [],
        {**STEP_TIMES._asdict(), "later": [{"number": 1, "steps": 2}]},
        {**STEP_TIMES._asdict(), "later": [{"number": 1, "steps": 0, "total_ns": 3}]},
        {
            **STEP_TIMES._asdict(),
            "later": [{"number": 1, "steps": 2, "total_ns": 3}] * 2,
        },
        {**STEP_TIMES._asdict(), "waits": [{"number": 1, "steps": 0, "total_ns": 3}]},
        {**STEP_TIMES._asdict(), "evaluations": None},
        {**STEP_TIMES._asdict(), "first_evaluations": 8},
        {**STEP_TIMES._asdict(), "first_evaluation_ns": 15},
    ],
)
def test_times_of_steps_that_are_none(times: Any, path: Path) -> None:
    path.write_text(json.dumps({**content(), "step_times": times}))

    with pytest.raises(ValueError, match=r"profile\.json is damaged"):
        Profile.load(path)


@pytest.mark.parametrize("name", ["unmeasured_steps", "unmeasured_ns"])
def test_what_was_not_measured_is_a_number(name: str, path: Path) -> None:
    path.write_text(json.dumps({**content(), name: "many"}))

    with pytest.raises(ValueError, match=r"profile\.json is damaged"):
        Profile.load(path)


def test_an_empty_profile_can_be_saved(path: Path) -> None:
    Profile().save(path)

    assert Profile.load(path) == Profile()


def test_a_file_of_version_1_can_still_be_loaded(path: Path) -> None:
    path.write_text(OLD_FILE)
    modules = ("Net", "Net.ä", "(outside modules)")

    assert Profile.load(path) == Profile(
        {
            (("Net",), "forward"): Totals(2, 10),
            (("Net", "Net.ä"), "backward"): Totals(3, 30, 0, 4, 20, 34, 10**20, 7),
            (("(outside modules)",), "outside"): Totals(0, 5),
        },
        {name: PROFILE.modules[name] for name in modules},
        45,
        steps=2,
        aborted_calls=1,
        overhead_ns=3,
        devices=("cuda",),
        memory=None,
    )


def test_a_file_of_version_2_can_still_be_loaded(path: Path) -> None:
    path.write_text(VERSION_2_FILE)
    memory = MemoryTotals(-9, 8, 0, 12)

    assert Profile.load(path) == Profile(
        {
            (("Net",), "backward"): Totals(3, 40, 0, 4, 20, 34, 600, 7, memory=memory),
            (("Net", "linear(2)"), "recompute"): Totals(1, 6),
        },
        {
            "Net": ModuleInfo("Net"),
            "linear(2)": ModuleInfo("linear", "function", order=3),
        },
        46,
        steps=2,
        aborted_calls=1,
        overhead_ns=3,
        devices=("cuda",),
        memory=MemorySummary("cpu", True, 77, ("Net",), "backward", "no counter"),
        undivided_passes=4,
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("(waiting for gradients)", "waiting"),
        ("(communication) all_reduce", "communication"),
    ],
)
def test_time_for_other_processes_is_kept(
    name: str, kind: Literal["waiting", "communication"], path: Path
) -> None:
    times = own(9, calls=2)
    hand_built({(name, kind): times}, {name: ModuleInfo(kind=kind)}).save(path)

    found = Profile.load(path)
    [row] = found.rows()
    assert (row.name, row.kind, row.calls, row.self_ns) == (name, kind, 2, 9)
    assert row.phases[kind].calls == 2


def test_a_profile_without_memory_says_so_in_one_place(path: Path) -> None:
    profile = hand_built({("Net", "forward"): own(1)}, {"Net": "Net"})
    profile.save(path)

    assert path.read_text().count("memory") == 1
    assert json.loads(path.read_bytes())["memory"] is None
    assert Profile.load(path) == profile


def test_saving_again_replaces_the_file_and_leaves_no_other(path: Path) -> None:
    Profile(wall_ns=1).save(path)
    PROFILE.save(path)

    assert Profile.load(path) == PROFILE
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("twentieth", range(21))
def test_a_truncated_file_is_refused(twentieth: int, path: Path) -> None:
    PROFILE.save(path)
    whole = path.read_bytes().rstrip()
    path.write_bytes(whole[: min(len(whole) * twentieth // 20, len(whole) - 1)])

    with pytest.raises(ValueError, match=r"profile\.json is not a whole JSON file"):
        Profile.load(path)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\x00" * 100,
        b"\xff\xfe{\x00}\x00",
        b'{"format": "torchprof_hooks profile", "version": 1}\xff',
        b"PK\x03\x04 a zip file",
        b"not JSON",
        b"{}{}",
        b"[" * 100_000,
    ],
    ids=range(8),
)
def test_a_file_that_is_not_json_is_refused(garbage: bytes, path: Path) -> None:
    path.write_bytes(garbage)

    with pytest.raises(ValueError, match=r"profile\.json is not a whole JSON file"):
        Profile.load(path)


@pytest.mark.parametrize(
    "other",
    [{"traceEvents": []}, {}, [], [content()], "text", 42, None, {"format": "a trace"}],
    ids=str,
)
def test_the_file_of_another_tool_is_refused(other: Any, path: Path) -> None:
    path.write_text(json.dumps(other))

    with pytest.raises(ValueError, match=r"profile\.json is not a profile of torch"):
        Profile.load(path)


@pytest.mark.parametrize("version", [-1, 0, 6, "1", None, [1], True, 1.0])
def test_another_version_is_refused(version: Any, path: Path) -> None:
    path.write_text(json.dumps({**content(), "version": version}))

    with pytest.raises(
        ValueError, match=r"profile\.json has version .* reads versions 1 to 5"
    ):
        Profile.load(path)


def inside(whole: Any, keys: tuple[Any, ...]) -> Any:
    """What holds the field that `keys` lead to."""
    for key in keys[:-1]:
        whole = whole[key]
    return whole


WRONG: list[tuple[Any, ...]] = [
    ("5", "wall_ns"),
    (5.0, "wall_ns"),
    (True, "steps"),
    (None, "aborted_calls"),
    (None, "undivided_passes"),
    (float("nan"), "overhead_ns"),
    ("cuda", "devices"),
    ([1], "devices"),
    ([], "modules"),
    (None, "modules"),
    ("Net", "modules", "Net"),
    (7, "modules", "Net", "class_name"),
    ("gadget", "modules", "Net", "kind"),
    ({}, "memory"),
    ([], "memory"),
    ("cpu", "memory"),
    (None, "memory", "source"),
    ("no", "memory", "is_net"),
    (1.5, "memory", "peak_bytes"),
    ("Net", "memory", "peak_path"),
    ([1], "memory", "peak_path"),
    ("sideways", "memory", "peak_phase"),
    (None, "memory", "unavailable"),
    (1.5, "cells", "used_bytes", 1),
    ("0", "cells", "peak_bytes", 1),
    ("Net.b", "modules", "Net", "aliases"),
    ([None], "modules", "Net", "aliases"),
    ("no", "modules", "Net", "compiled"),
    (None, "modules", "Net", "implementation"),
    ("float32@cpu", "modules", "Net", "inputs"),
    ([32], "modules", "Net", "inputs"),
    (1.5, "cells", "flops", 2),
    ({}, "cells"),
    ([], "cells"),
    ({"a": 1}, "cells"),
    (3, "cells"),
    ("Net", "cells", "names"),
    ([1, 2, 3, 4, 5], "cells", "names"),
    (["Net"], "cells", "names"),
    ("Unknown", "cells", "names", 0),
    ([0], "cells", "path"),
    (None, "cells", "path"),
    ("Net", "cells", "path", 0),
    (["Net"], "cells", "path", 0),
    ([], "cells", "path", 0),
    ([5], "cells", "path", 0),
    ([-1], "cells", "path", 0),
    ([True], "cells", "path", 1),
    ([[0]], "cells", "path", 0),
    ("forward", "cells", "phase"),
    (["forward"], "cells", "phase"),
    ("sideways", "cells", "phase", 0),
    (["forward"], "cells", "phase", 0),
    ({}, "cells", "calls"),
    ("2", "cells", "calls", 0),
    (1e3, "cells", "self_ns", 0),
    (None, "cells", "squares_ns2", 0),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_field_of_a_wrong_type_is_refused(wrong: tuple[Any, ...], path: Path) -> None:
    value, *keys = wrong
    spoiled = content()
    inside(spoiled, tuple(keys))[keys[-1]] = value
    path.write_text(json.dumps(spoiled))

    with pytest.raises(ValueError, match=r"profile\.json is damaged"):
        Profile.load(path)


@pytest.mark.parametrize(
    "keys",
    [
        *((name,) for name in content() if name not in ("format", "version")),
        *(("modules", "Net", name) for name in content()["modules"]["Net"]),
        *(
            ("cells", name)
            for name in content()["cells"]
            if name not in OPTIONAL_COLUMNS
        ),
        *(("memory", name) for name in content()["memory"]),
    ],
    ids=str,
)
def test_a_missing_field_is_refused(keys: tuple[Any, ...], path: Path) -> None:
    spoiled = content()
    del inside(spoiled, keys)[keys[-1]]
    path.write_text(json.dumps(spoiled))

    with pytest.raises(ValueError, match=rf"profile\.json is damaged.*{keys[-1]}"):
        Profile.load(path)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_that_is_not_there_is_an_oserror(
    kind: Callable[[Path], str], path: Path
) -> None:
    with pytest.raises(FileNotFoundError, match=r"profile\.json"):
        Profile.load(kind(path))


def test_saving_where_no_folder_is_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PROFILE.save(tmp_path / "missing" / "profile.json")


def test_saving_over_a_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(OSError, match="folder"):
        PROFILE.save(tmp_path / "folder")

    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_an_existing_file_survives_a_save_that_fails(path: Path) -> None:
    # GIVEN a saved profile, and files that may not have more than a few characters
    PROFILE.save(path)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, usual[1]))

    # WHEN another one is saved in its place
    try:
        with pytest.raises(OSError, match="File too large"):
            Profile(wall_ns=1).save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)

    # THEN the first is still there, and nothing else
    assert Profile.load(path) == PROFILE
    assert list(path.parent.iterdir()) == [path]


SAMPLES = Path(__file__).parent / "samples"


@pytest.mark.parametrize(
    ("version", "has_functions"), [(1, False), (2, True), (3, True), (4, True)]
)
def test_what_old_versions_have_saved_can_be_loaded(
    version: int, has_functions: bool, path: Path
) -> None:
    profile = Profile.load(SAMPLES / f"version_{version}.json")

    assert profile.steps == 3
    assert profile.has_functions == has_functions
    assert sum(t.self_ns for t in profile.cells.values()) == profile.wall_ns
    profile.save(path)
    assert Profile.load(path) == profile
    assert json.loads(path.read_bytes())["version"] == 5


def test_own_times_below_zero_of_old_files_are_taken_from_the_largest(
    path: Path,
) -> None:
    # Version 3 had them after interrupts: time that was booked twice.
    spoiled = json.loads((SAMPLES / "version_3.json").read_bytes())
    cells = spoiled["cells"]
    largest = max(cells, key=lambda cell: cell["self_ns"])
    largest["self_ns"] += cells[0]["self_ns"] + 7
    cells[0]["self_ns"] = -7
    path.write_text(json.dumps(spoiled))

    own = [totals.self_ns for totals in Profile.load(path).cells.values()]

    assert own[0] == 0
    assert own[cells.index(largest)] == largest["self_ns"] - 7
    assert sum(own) == spoiled["wall_ns"]


def test_own_times_below_zero_are_not_saved(path: Path) -> None:
    profile = hand_built(
        {
            ("Net", "forward"): own(-7),
            ("Net", "backward"): own(4),
            ("(outside modules)", "outside"): own(10, calls=0),
        },
        {"Net": "Net"},
    )
    profile.save(path)

    loaded = Profile.load(path)
    assert [totals.self_ns for totals in loaded.cells.values()] == [0, 4, 3]
    assert loaded.wall_ns == profile.wall_ns == 7


#: What cannot be, and what is said of it.
IMPOSSIBLE: list[tuple[Any, ...]] = [
    (-1, "wall_ns", r"wall_ns is -1; it has to be a whole number from 0 to 2\^63-1"),
    (-1, "steps", "steps is -1; it has to be a whole number from 0"),
    (2**63, "steps", "steps is 9223372036854775808; it has to be a whole number"),
    (10**1000, "overhead_ns", r"overhead_ns is 1000.*\.\.\..*000; it has to be"),
    (-5, "cells", "self_ns", 1, r"cells\[1\]\.self_ns is -5; it has to be a whole"),
    (-1, "cells", "calls", 1, r"cells\[1\]\.calls is -1; it has"),
    (21, "cells", "min_ns", 1, r"cells\[1\] has min_ns 21 above max_ns 20"),
    (61, "cells", "duration_ns", 1, r"cells\[1\] has duration_ns 61, but 3 calls of"),
    (2**126, "cells", "squares_ns2", 1, r"cells\[1\]\.squares_ns2 is .*2\^126-1"),
    (-1, "cells", "flops", 2, r"cells\[2\]\.flops is -1; it has to be a whole number"),
    ([1], "cells", "flopz", r"cells has the unknown field 'flopz'"),
    ([1], "cells", "calls", r"cells has lists of different lengths: .*'calls': 1"),
    (-(2**64), "cells", "used_bytes", 1, r"used_bytes is .*from -2\^63 to"),
    (31, "cells", "self_ns", 1, "self_ns add up to 61, but wall_ns is 60"),
    ([0] * 10_001, "cells", "path", 1, r"cells\[1\]\.path has 10001 items"),
    (
        [0, 5],
        "cells",
        "path",
        1,
        r"cells\[1\]\.path\[1\] is 5; .* the place of one of 5 names",
    ),
    (["b"], "cells", "names", r"cells\[1\]\.path\[1\] is 1; .* of one of 1 names"),
    ("b", "cells", "names", 2, "cells of 'b', which is not among the modules"),
    (-1, "modules", "Net.ä", "order", r"modules\['Net.ä'\]\.order is -1; it has to be"),
    (1, "modules", "Net", "aliases", r"modules\['Net'\]\.aliases is 1; it has to be a"),
    (9, "device_waits", "it has 9 device_waits of 0 asked"),
    ("sideways", "memory", "peak_phase", "peak_phase is 'sideways'; .* 'forward', "),
    (1, "unheard_of", "it has the unknown field 'unheard_of'"),
]


@pytest.mark.parametrize("wrong", IMPOSSIBLE, ids=lambda wrong: str(wrong[-1])[:30])
def test_what_cannot_be_is_refused_with_its_place(
    wrong: tuple[Any, ...], path: Path
) -> None:
    value, *keys, message = wrong
    spoiled = content()
    inside(spoiled, tuple(keys))[keys[-1]] = value
    path.write_text(json.dumps(spoiled))

    with pytest.raises(ValueError, match=rf"profile\.json is damaged: .*{message}"):
        Profile.load(path)


def test_two_cells_of_one_path_and_phase_are_refused(path: Path) -> None:
    spoiled = content()
    for name, column in spoiled["cells"].items():
        if name != "names":
            column.append(column[1])
    path.write_text(json.dumps(spoiled))

    message = r"cells\[5\] has the path and the phase of another cell"
    with pytest.raises(ValueError, match=message):
        Profile.load(path)


#: The same for a file of version 2, whose cells are objects.
IMPOSSIBLE_BEFORE: list[tuple[Any, ...]] = [
    ({}, "cells", "cells is {}; it has to be a list"),
    (3, "cells", 1, r"cells\[1\] is 3; it has to be an object with fields"),
    (-5, "cells", 1, "calls", r"cells\[1\]\.calls is -5; it has to be a whole number"),
    ("Net", "cells", 0, "path", r"cells\[0\]\.path is 'Net'; it has to be a list"),
    (["b"], "cells", 0, "path", "cells of 'b', which is not among the modules"),
    (1, "cells", 1, "flopz", r"cells\[1\] has the unknown field 'flopz'"),
    (None, "cells", 0, "memory", r"cells\[0\] is None; it has to be an object"),
    ({}, "cells", 0, "memory", r"cells\[0\] has no field 'acquired_bytes'"),
    (1.5, "cells", 0, "memory", "peak_bytes", r"cells\[0\]\.peak_bytes is 1.5; it has"),
]


@pytest.mark.parametrize("wrong", IMPOSSIBLE_BEFORE, ids=lambda wrong: str(wrong[:-1]))
def test_what_cannot_be_in_old_files_is_refused_with_its_place(
    wrong: tuple[Any, ...], path: Path
) -> None:
    value, *keys, message = wrong
    spoiled = json.loads(VERSION_2_FILE)
    inside(spoiled, tuple(keys))[keys[-1]] = value
    path.write_text(json.dumps(spoiled))

    with pytest.raises(ValueError, match=rf"profile\.json is damaged: .*{message}"):
        Profile.load(path)


def test_a_missing_field_of_a_cell_in_an_old_file_is_refused(path: Path) -> None:
    spoiled = json.loads(VERSION_2_FILE)
    del spoiled["cells"][1]["self_ns"]
    path.write_text(json.dumps(spoiled))

    with pytest.raises(ValueError, match=r"cells\[1\] has no field 'self_ns'"):
        Profile.load(path)


def test_a_number_takes_no_more_than_itself_and_a_comma(path: Path) -> None:
    # GIVEN profiles of which one has a hundred cells more, of a hundred modules more
    def saved_bytes(count: int) -> int:
        names = [f"Net.{number:06}" for number in range(count)]
        cells: dict[tuple[str, Phase], Totals]
        cells = {(name, "forward"): own(1) for name in names}
        hand_built(cells, dict.fromkeys(names, "Net")).save(path)
        return path.stat().st_size

    # THEN a cell takes the name, its place, the phase, and 6 numbers of a digit
    more = (saved_bytes(1200) - saved_bytes(1100)) / 100
    info = len('"Net.000000":{"class_name":"Net","kind":"module","order":1000},')
    assert more - info <= len('"Net.000000",' + "[1200]," + '"forward",' + "1," * 6)


@pytest.mark.parametrize(("true", "false"), [(1, True), (0, False), (1, 1.0)])
def test_what_was_read_before_is_checked_all_the_same(
    true: Any, false: Any, path: Path
) -> None:
    """Descriptions of modules are remembered; what only equals them is none."""
    written = content()
    name = next(iter(written["modules"]))
    written["modules"][name]["order"] = true
    path.write_text(json.dumps(written))
    assert Profile.load(path).modules[name].order == true
    written["modules"][name]["order"] = false
    path.write_text(json.dumps(written))
    with pytest.raises(ValueError, match=r"\.order is .*; it has to be"):
        Profile.load(path)
