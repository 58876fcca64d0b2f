"""Calls deeper inside of each other than Python calls functions."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.build import profile_of, timed
from torchprof_hooks import Profile
from torchprof_hooks.documents.build.compare import comparison_document
from torchprof_hooks.documents.export.stacks import render_speedscope
from torchprof_hooks.documents.render.text import text_of
from torchprof_hooks.documents.report import rows_report
from torchprof_hooks.profiles.compare import compare
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import GROUPINGS, Grouping

DEPTH = 3 * sys.getrecursionlimit()
NAMES = tuple(f"m{number}" for number in range(DEPTH))


@pytest.fixture(scope="module")
def profile() -> Profile:
    cells = {
        (NAMES[:length], "forward"): timed(length) for length in (1, DEPTH // 2, DEPTH)
    }
    return profile_of(
        cells,
        {name: ModuleInfo("Layer", order=n) for n, name in enumerate(NAMES)},
    )


def test_the_tree(profile: Profile) -> None:
    nodes = list(profile.tree().walk())
    assert [depth for depth, _ in nodes] == list(range(DEPTH + 1))
    assert [node.name for _, node in nodes] == ["", *NAMES]
    assert {node.cumulative_ns for _, node in nodes[:2]} == {profile.wall_ns}
    assert nodes[-1][1].self_ns == DEPTH


@pytest.mark.parametrize("by", GROUPINGS)
def test_rows(by: Grouping, profile: Profile) -> None:
    assert sum(row.self_ns for row in profile.rows(by)) == profile.wall_ns


@pytest.mark.parametrize(
    "render",
    [
        Profile.report,
        partial(Profile.report, full=True),
        partial(rows_report, by="module"),
        Profile.to_json,
        render_speedscope,
        lambda profile: text_of(comparison_document(compare(profile, profile))),
    ],
    ids=["report", "full", "rows", "JSON", "speedscope", "comparison"],
)
def test_reports(render: partial[str], profile: Profile) -> None:
    assert "m0" in render(profile)


def test_files(profile: Profile, tmp_path: Path) -> None:
    profile.save(tmp_path / "deep.json")
    assert Profile.load(tmp_path / "deep.json") == profile
