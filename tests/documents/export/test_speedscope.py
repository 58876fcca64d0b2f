from __future__ import annotations

import json
from typing import Any

from hypothesis import given

from tests.helpers import FUNCTIONS, STEP, hand_built, own
from tests.profile_of import profile_of
from tests.profiles.test_merge import profiles
from torchprof_hooks import Profile
from torchprof_hooks.documents.export.stacks import render_speedscope as render
from torchprof_hooks.profiles.names import MODULE_PHASES


def graphs(profile: Profile) -> dict[str, dict[tuple[str, ...], int]]:
    """What the viewer makes of a file: for each graph, time by stack."""
    document = json.loads(render(profile))
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    assert len(set(frames)) == len(frames)
    return {graph["name"]: stacks(graph, frames) for graph in document["profiles"]}


def stacks(graph: Any, frames: list[str]) -> dict[tuple[str, ...], int]:
    """Checks the graph against the format on the way."""
    assert set(graph) == {
        *("type", "name", "unit", "startValue", "endValue", "samples", "weights")
    }
    assert (graph["type"], graph["unit"]) == ("sampled", "nanoseconds")
    assert graph["endValue"] - graph["startValue"] == sum(graph["weights"])
    assert all(weight > 0 for weight in graph["weights"])
    assert all(0 <= i < len(frames) for sample in graph["samples"] for i in sample)
    found: dict[tuple[str, ...], int] = {}
    for sample, weight in zip(graph["samples"], graph["weights"], strict=True):
        stack = tuple(frames[i] for i in sample)
        found[stack] = found.get(stack, 0) + weight
    return found


def test_a_graph_for_each_phase() -> None:
    assert graphs(STEP) == {
        "forward": {
            ("Net",): 10,
            ("Net", "Net.a"): 30,
            ("Net", "Net.b"): 5,
            ("Net", "Net.b", "Net.b.a"): 15,
        },
        "backward": {
            ("Net",): 1,
            ("Net", "Net.a"): 40,
            ("Net", "Net.b", "Net.b.a"): 20,
            ("(backward outside modules)",): 4,
        },
        "recompute": {
            ("Net", "Net.b"): 6,
            ("Net", "Net.b", "Net.b.a"): 14,
        },
        "other": {
            ("(outside modules)",): 12,
            ("(optimizer) SGD",): 8,
            ("(profiler)",): 3,
        },
    }


def test_functions_are_frames_too() -> None:
    recompute = graphs(FUNCTIONS)["recompute"]

    checkpoint = ("Net", "CheckpointFunction(8x4)", "Net.block", "linear(8x4, 4x4)")
    assert recompute[checkpoint] == 12
    assert recompute["Net", "tanh(8x4)"] == 15


def test_stacks_are_in_the_order_of_the_calls() -> None:
    # So that the view in order of time has one box per module.
    samples = json.loads(render(STEP))["profiles"][0]["samples"]

    assert samples == [[0], [0, 1], [0, 2], [0, 2, 3]]


def test_the_document_around_the_graphs() -> None:
    document = json.loads(render(hand_built({("Net", "backward"): own(7)}, {})))

    assert document == {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "torchprof_hooks",
        "name": "torchprof_hooks",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": "Net"}]},
        "profiles": [
            {
                "type": "sampled",
                "name": "backward",
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": 7,
                "samples": [[0]],
                "weights": [7],
            }
        ],
    }


def test_of_nothing_there_is_an_empty_graph() -> None:
    assert graphs(profile_of()) == {"forward": {}}


@given(profiles)
def test_times_are_the_own_times_of_the_profile(profile: Profile) -> None:
    expected: dict[str, dict[tuple[str, ...], int]] = {}
    for (path, phase), totals in profile.cells.items():
        if totals.self_ns > 0:
            group = phase if phase in MODULE_PHASES else "other"
            of_group = expected.setdefault(group, {})
            of_group[path] = of_group.get(path, 0) + totals.self_ns

    assert graphs(profile) == (expected or {"forward": {}})
