from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import hand_built, own
from torchprof_hooks import Profile
from torchprof_hooks.profiles.memory import MemorySummary, MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.totals import Totals

PROFILE = hand_built(
    {
        ("Net", "forward"): own(10, calls=2),
        ("Net > Net.ä", "backward"): Totals(
            3, 30, 0, 4, 20, 34, 10**20, 7, memory=MemoryTotals(-9, 8, 0, 10**20)
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
        "version": 3,
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
            "Net": module("Net", "module", [], False, 0),
            "Net.ä": module("Linear", "module", ["Net.b", "Net.c"], True, 1),
            "(outside modules)": module("", "outside", [], False, 0),
            "(data loading)": module("", "data", [], False, 0),
            "linear(2)": {
                **module("linear", "function", [], False, 4),
                "implementation": "C",
                "inputs": ["float32@cpu", "float64@cpu"],
            },
        },
        "cells": [
            cell(["Net"], "forward", 2, 10, 0, 0, 0, 0, 0),
            {
                **cell(["Net", "Net.ä"], "backward", 3, 30, 4, 20, 34, 10**20, 7),
                "memory": {
                    "used_bytes": -9,
                    "acquired_bytes": 8,
                    "retained_bytes": 0,
                    "peak_bytes": 10**20,
                },
            },
            {
                **cell(["Net", "linear(2)"], "recompute", 1, 6, 0, 0, 0, 0, 0),
                "flops": 10**20,
            },
            cell(["(data loading)"], "data", 2, 9, 0, 0, 0, 0, 0),
            cell(["(outside modules)"], "outside", 0, 5, 0, 0, 0, 0, 0),
        ],
    }


NEW_IN_VERSION_3: dict[str, Any] = {"implementation": "", "inputs": [], "place": ""}


def module(
    class_name: str, kind: str, aliases: list[str], compiled: bool, order: int
) -> Any:
    return {
        "class_name": class_name,
        "kind": kind,
        "aliases": aliases,
        "compiled": compiled,
        "order": order,
        **NEW_IN_VERSION_3,
    }


def cell(path: list[str], phase: str, *numbers: int) -> Any:
    fields = "calls self_ns min_ns max_ns duration_ns squares_ns2 device_self_ns"
    counts = dict(zip(fields.split(), numbers, strict=True))
    return {"path": path, "phase": phase, **counts}


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
    expected["cells"][0]["overhead_ns"] = 4
    assert json.loads(path.read_bytes()) == expected
    assert Profile.load(path).cells == cells


def test_what_was_not_measured_is_written_if_there_was_something(path: Path) -> None:
    profile = replace(PROFILE, unmeasured_steps=7, unmeasured_ns=800)
    profile.save(path)

    expected = {**content(), "unmeasured_steps": 7, "unmeasured_ns": 800}
    assert json.loads(path.read_bytes()) == expected
    assert Profile.load(path) == profile


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


@pytest.mark.parametrize("version", [-1, 0, 4, "1", None, [1], True, 1.0])
def test_another_version_is_refused(version: Any, path: Path) -> None:
    path.write_text(json.dumps({**content(), "version": version}))

    with pytest.raises(
        ValueError, match=r"profile\.json has version .* reads versions 1 to 3"
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
    (None, "cells", 0, "memory"),
    ({}, "cells", 0, "memory"),
    (1.5, "cells", 1, "memory", "used_bytes"),
    ("0", "cells", 1, "memory", "peak_bytes"),
    ("Net.b", "modules", "Net", "aliases"),
    ([None], "modules", "Net", "aliases"),
    ("no", "modules", "Net", "compiled"),
    (None, "modules", "Net", "implementation"),
    ("float32@cpu", "modules", "Net", "inputs"),
    ([32], "modules", "Net", "inputs"),
    (1.5, "cells", 2, "flops"),
    ({}, "cells"),
    ({"a": 1}, "cells"),
    (3, "cells"),
    (["Net"], "cells", 0),
    ("Net", "cells", 0, "path"),
    ([], "cells", 0, "path"),
    (["Unknown"], "cells", 0, "path"),
    ([["Net"]], "cells", 0, "path"),
    ("sideways", "cells", 0, "phase"),
    (["forward"], "cells", 0, "phase"),
    ("2", "cells", 0, "calls"),
    (1e3, "cells", 0, "self_ns"),
    (None, "cells", 0, "squares_ns2"),
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
        *(
            ("modules", "Net", name)
            for name in content()["modules"]["Net"].keys() - NEW_IN_VERSION_3.keys()
        ),
        *(("cells", 2, name) for name in content()["cells"][2] if name != "flops"),
        *(("memory", name) for name in content()["memory"]),
        *(("cells", 1, "memory", name) for name in content()["cells"][1]["memory"]),
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


def test_an_existing_file_survives_a_save_that_fails(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a saved profile, and a disk that is full after a few characters
    PROFILE.save(path)

    def full_disk(content: object, file: Any, **options: object) -> None:
        file.write('{"format":')
        raise OSError("No space left on device")

    monkeypatch.setattr(json, "dump", full_disk)

    # WHEN another one is saved in its place
    with pytest.raises(OSError, match="No space left"):
        Profile(wall_ns=1).save(path)

    # THEN the first is still there, and nothing else
    assert Profile.load(path) == PROFILE
    assert list(path.parent.iterdir()) == [path]
