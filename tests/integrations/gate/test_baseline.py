"""Files of baselines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchprof_hooks import ProfileFileError
from torchprof_hooks.integrations.gate.baseline import (
    Baseline,
    Low,
    Machine,
    Run,
    load,
    save,
)

MACHINE = Machine("EPYC", 2, 1, "cpu", "2.13.0", "3.11", "native", False)
BASELINE = Baseline(
    MACHINE, (Run(1000, 2000, {"Net": Low("Net", {"forward": 5, "backward": 7})}),) * 2
)


def test_what_is_written_is_read_and_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "test.json"
    save(BASELINE, path)
    assert load(Baseline, path) == BASELINE
    assert [each.name for each in path.parent.iterdir()] == ["test.json"]


def first_run(content: Any) -> Any:
    return content["runs"][0]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: c.update(format="x"), "is not a baseline of torchprof_hooks"),
        (lambda c: c.update(version=2), "has version 2; this release reads version 1"),
        (lambda c: c.pop("machine"), "is damaged: .*machine"),
        (lambda c: c["machine"].update(cores=-1), "is damaged: .*cores"),
        (lambda c: c.update(runs=[]), "is damaged: .*no runs"),
        (lambda c: first_run(c).update(memory_ns=0), "is damaged: .*reference"),
        (lambda c: first_run(c)["rows"].update(Net=3), "is damaged: .*Net"),
    ],
)
def test_damage_is_told_with_the_path(
    damage: Callable[[Any], Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "test.json"
    save(BASELINE, path)
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ProfileFileError, match=f"{path} {message}"):
        load(Baseline, path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 1, "format": 2}', "\udcff"]
)
def test_what_is_no_whole_json_file_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "test.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ProfileFileError, match=str(path)):
        load(Baseline, path)
