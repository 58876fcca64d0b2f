from __future__ import annotations

import json
from typing import Any

import pytest

from torchprof_hooks.documents.export.chrome_trace.events import (
    MODULE_TRACK,
    module_events,
)
from torchprof_hooks.profiles.trace.step_trace import ModuleSpan, StepTrace

TRACK = {"pid": 12, "tid": MODULE_TRACK + 34}


def events_of(*modules: ModuleSpan, base_ns: int = 0) -> list[dict[str, Any]]:
    trace = StepTrace(7, 12, 34, 1_000, 9_500, modules=list(modules))
    return [json.loads(event) for event in module_events(trace, base_ns)]


def test_the_step_is_around_its_modules_which_keep_their_order() -> None:
    step, *modules = events_of(
        ModuleSpan("Net", "Net", "forward", 2_000, 5_000),
        ModuleSpan("Net.fc", "Linear", "forward", 3_000, 4_001),
        ModuleSpan("Net.fc", "Linear", "backward", 6_000, 6_000),
        base_ns=500,
    )[2:]
    slices = {**TRACK, "ph": "X"}
    assert step == {**slices, "name": "step 7", "cat": "step", "ts": 0.5, "dur": 8.5}
    assert modules == [
        {**slices, "name": name, "cat": phase, "ts": start, "dur": took}
        | {"args": {"class": kind}}
        for name, phase, start, took, kind in [
            ("Net", "forward", 1.5, 3.0, "Net"),
            ("Net.fc", "forward", 2.5, 1.001, "Linear"),
            ("Net.fc backward", "backward", 5.5, 0.0, "Linear"),
        ]
    ]


@pytest.mark.parametrize(
    ("span", "label"),
    [
        (ModuleSpan("Net.fc", "Linear", "forward", 1, 2), "Net.fc"),
        (ModuleSpan("Net.fc", "Linear", "backward", 1, 2), "Net.fc backward"),
        (ModuleSpan("Net.fc", "Linear", "recompute", 1, 2), "Net.fc recompute"),
        (ModuleSpan('a["b"]', 'C"', "forward", 1, 2), 'a["b"]'),
        # These say it already, and have no class.
        (ModuleSpan("(optimizer) SGD", "", "optimizer", 1, 2), "(optimizer) SGD"),
        (ModuleSpan("(backward)", "", "backward", 1, 2), "(backward)"),
    ],
)
def test_a_label_is_the_path_and_what_is_not_forward(
    span: ModuleSpan, label: str
) -> None:
    event = events_of(span)[-1]
    assert (event["name"], event["cat"]) == (label, span.phase)
    assert event.get("args", {}) == ({"class": span.kind} if span.kind else {})
