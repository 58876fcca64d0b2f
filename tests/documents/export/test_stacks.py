"""Profiles as stacks with times: files of speedscope."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.build import own, profile_of
from tests.profiles.test_merge import profiles
from torchprof_hooks import Profile
from torchprof_hooks.documents.export.stacks import render_speedscope
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import MODULE_PHASES

Stacks = Counter[tuple[str, ...]]


def expected(profile: Profile) -> Stacks:
    """Own times by stack, the phase outermost."""
    found: Stacks = Counter()
    for (path, phase), totals in profile.cells.items():
        if totals.self_ns > 0:
            group = phase if phase in MODULE_PHASES else "other"
            found[(group, *path)] += totals.self_ns
    return found


def speedscope(profile: Profile) -> Stacks:
    """What the viewer makes of it; checks the format on the way."""
    document = json.loads(render_speedscope(profile))
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    assert len(set(frames)) == len(frames)
    found: Stacks = Counter()
    for graph in document["profiles"]:
        assert (graph["type"], graph["unit"]) == ("sampled", "nanoseconds")
        assert graph["endValue"] - graph["startValue"] == sum(graph["weights"])
        for sample, weight in zip(graph["samples"], graph["weights"], strict=True):
            assert weight > 0
            stack = (graph["name"], *(frames[number] for number in sample))
            found[stack] += weight
    return found


@given(profiles)
def test_times_are_the_own_times_of_the_profile(profile: Profile) -> None:
    assert speedscope(profile) == expected(profile)


@given(st.text(min_size=1))
def test_any_name_can_be_read_back(name: str) -> None:
    infos = {name: ModuleInfo("Net")}
    profile = profile_of({((name, name), "forward"): own(7)}, infos)
    wanted = {("forward", name, name): 7}
    assert speedscope(profile) == wanted


def graph(phase: str, samples: list[list[int]], weights: list[int]) -> dict[str, Any]:
    common = {"type": "sampled", "name": phase, "unit": "nanoseconds", "startValue": 0}
    return {**common, "endValue": sum(weights), "samples": samples, "weights": weights}


def test_a_file_of_speedscope() -> None:
    """Stacks are in the order of the calls: in the order of time, a module is a box."""
    cells: dict[Any, Any] = {
        ("Net", "forward"): own(10),
        ("Net", "backward"): own(7),
        ("Net > Net.b", "forward"): own(5),
        ("Net > Net.a", "forward"): own(3),
    }
    profile = profile_of(cells, {"Net": "Net", "Net.a": "Linear", "Net.b": "Linear"})
    assert json.loads(render_speedscope(profile)) == {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "torchprof_hooks",
        "name": "torchprof_hooks",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": n} for n in ("Net", "Net.a", "Net.b")]},
        "profiles": [
            graph("forward", [[0], [0, 1], [0, 2]], [10, 3, 5]),
            graph("backward", [[0]], [7]),
        ],
    }


def test_times_below_0_of_calls_that_are_open_are_left_out() -> None:
    infos = {"Net": ModuleInfo("Net"), "Net.a": ModuleInfo("A")}
    cells: Any = {(("Net",), "forward"): own(-3), (("Net", "Net.a"), "forward"): own(5)}
    found = profile_of(cells, infos)
    assert speedscope(found) == {("forward", "Net", "Net.a"): 5}
