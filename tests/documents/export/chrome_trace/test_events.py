"""Single events of a trace, and those of a step and its modules."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchprof_hooks.documents.export.chrome_trace.events import (
    MODULE_TRACK,
    Track,
    module_events,
)
from torchprof_hooks.profiles.trace.step_trace import ModuleSpan, StepTrace

TRACK = Track(12, 34, base_ns=1_000)
AT = 3_500

#: A maker of each kind of event, of its name, and what it makes.
KINDS: dict[str, tuple[Callable[[str], str], dict[str, Any]]] = {
    "metadata": (
        lambda name: TRACK.metadata(name, '{"name":"modules"}'),
        {"ph": "M", "args": {"name": "modules"}},
    ),
    "span": (
        lambda name: TRACK.span(name, "forward", AT, 5_000),
        {"ph": "X", "cat": "forward", "ts": 2.5, "dur": 1.5},
    ),
    "span with arguments": (
        lambda name: TRACK.span(name, "step", AT, 5_000, **{"class": 'odd "Net"\n'}),
        {"ph": "X", "cat": "step", "ts": 2.5, "dur": 1.5}
        | {"args": {"class": 'odd "Net"\n'}},
    ),
    "start of an arrow": (
        lambda name: TRACK.flow(name, "dataflow", 7, AT),
        {"ph": "s", "cat": "dataflow", "id": 7, "ts": 2.5},
    ),
    # "bp": the arrow ends at the slice around its end, not at the next one.
    "end of an arrow": (
        lambda name: TRACK.flow(name, "dataflow", 7, AT, ends=True),
        {"ph": "f", "cat": "dataflow", "id": 7, "ts": 2.5, "bp": "e"},
    ),
    "object": (
        lambda name: TRACK.object_event("N", name, 7, AT),
        {"ph": "N", "cat": "memory", "id": "7", "ts": 2.5},
    ),
    "object that is looked at": (
        lambda name: TRACK.object_event("O", name, -1, AT, '{"bytes":8}'),
        {"ph": "O", "cat": "memory", "id": "-1", "ts": 2.5}
        | {"args": {"snapshot": {"bytes": 8}}},
    ),
    "counter": (
        lambda name: TRACK.counter(name, "bytes in use", 8, AT),
        {"ph": "C", "cat": "memory", "ts": 2.5, "args": {"bytes in use": 8}},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@given(name=st.text())
def test_an_event_is_a_line_of_json_with_its_fields_its_place_and_any_name(
    kind: str, name: str
) -> None:
    make, fields = KINDS[kind]
    event = make(name)
    assert json.loads(event) == {**fields, "name": name, "pid": 12, "tid": 34}
    assert event.isascii()
    assert "\n" not in event


@given(st.integers(0, 2**62), st.integers(0, 2**50), st.integers(0, 2**50))
def test_times_are_exact_to_the_nanosecond(base: int, since: int, took: int) -> None:
    start = base + since
    event = json.loads(
        Track(1, 2, base).span("", "", start, start + took), parse_float=Decimal
    )
    assert (event["ts"] * 1_000, event["dur"] * 1_000) == (since, took)


def test_times_since_the_epoch_are_exact() -> None:
    """A float has less digits."""
    event = TRACK.flow("", "", 1, 1_790_857_026_123_457_789)
    assert '"ts":1790857026123456.789,' in event


@given(st.integers(2**51, 2**53 - 2**41), st.lists(st.integers(0, 2**40), min_size=3))
def test_what_ends_together_does_so_for_viewers(since: int, spans: list[int]) -> None:
    """Where floating-point numbers of microseconds have no nanoseconds any more."""
    end = since + 2**40
    ends = set()
    for took in spans:
        event = json.loads(TRACK.span("", "", 1_000 + end - took, 1_000 + end))
        # As Perfetto reads them: doubles, then rounded like C's `llround`.
        start_ns, duration_ns = (
            int(Decimal(event[part] * 1_000).to_integral_value(ROUND_HALF_UP))
            for part in ("ts", "dur")
        )
        ends.add(start_ns + duration_ns)
    assert len(ends) == 1
    assert abs(ends.pop() - end) <= 2


# Modules


def test_the_step_is_around_its_modules_which_keep_their_order() -> None:
    """What is not forward is said, unless the name says it already."""
    trace = StepTrace(7, 12, 34, 1_000, 9_500)
    trace.modules = [
        ModuleSpan("Net", "Net", "forward", 2_000, 5_000),
        ModuleSpan("Net.fc", "Linear", "forward", 3_000, 4_001),
        ModuleSpan("Net.fc", "Linear", "backward", 6_000, 6_000),
        ModuleSpan("Net.fc", "Linear", "recompute", 6_000, 7_000),
        ModuleSpan("(backward)", "", "backward", 7_000, 8_000),
    ]
    name, order, *slices = map(json.loads, module_events(trace, base_ns=500))
    assert name["args"] == {"name": "modules"}
    assert order["args"] == {"sort_index": 33}
    for event in slices:
        assert (event.pop("pid"), event.pop("tid")) == (12, MODULE_TRACK + 34)
        assert event.pop("ph") == "X"
    linear = {"args": {"class": "Linear"}}
    assert slices == [
        {"name": "step 7", "cat": "step", "ts": 0.5, "dur": 8.5},
        {"name": "Net", "cat": "forward", "ts": 1.5, "dur": 3.0}
        | {"args": {"class": "Net"}},
        {"name": "Net.fc", "cat": "forward", "ts": 2.5, "dur": 1.001} | linear,
        {"name": "Net.fc backward", "cat": "backward", "ts": 5.5, "dur": 0.0} | linear,
        {"name": "Net.fc recompute", "cat": "recompute", "ts": 5.5, "dur": 1.0}
        | linear,
        {"name": "(backward)", "cat": "backward", "ts": 6.5, "dur": 1.0},
    ]
