from __future__ import annotations

import json
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchprof_hooks.documents.export.chrome_trace.events import Track

TRACK = Track(12, 34, base_ns=1_000)
WHERE = {"pid": 12, "tid": 34}

#: A maker of each kind of event, of its name.
KINDS: dict[str, Callable[[str], str]] = {
    "metadata": lambda name: TRACK.metadata(name, "{}"),
    "span": lambda name: TRACK.span(name, "step", 1_000, 2_000),
    "flow start": lambda name: TRACK.flow_start(name, "dataflow", 1, 1_000),
    "flow end": lambda name: TRACK.flow_end(name, "dataflow", 1, 1_000),
    "object": lambda name: TRACK.object_event("N", name, 1, 1_000),
    "counter": lambda name: TRACK.counter(name, "bytes", 1, 1_000),
}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            TRACK.metadata("thread_name", '{"name":"modules"}'),
            {"ph": "M", "name": "thread_name", "args": {"name": "modules"}},
        ),
        (
            TRACK.span("Net", "forward", 3_500, 5_000),
            {"ph": "X", "cat": "forward", "name": "Net", "ts": 2.5, "dur": 1.5},
        ),
        (
            TRACK.span("Net", "forward", 3_500, 5_000, **{"class": 'odd "Net"\n'}),
            {"ph": "X", "cat": "forward", "name": "Net", "ts": 2.5, "dur": 1.5}
            | {"args": {"class": 'odd "Net"\n'}},
        ),
        (
            TRACK.flow_start("gradient", "dataflow", 7, 3_500),
            {"ph": "s", "cat": "dataflow", "name": "gradient", "id": 7, "ts": 2.5},
        ),
        (
            # "bp": the arrow ends at the slice around its end, not at the next one.
            TRACK.flow_end("gradient", "dataflow", 7, 3_500),
            {"ph": "f", "cat": "dataflow", "name": "gradient", "id": 7, "ts": 2.5}
            | {"bp": "e"},
        ),
        (
            TRACK.object_event("N", "Tensor memory", 7, 3_500),
            {"ph": "N", "cat": "memory", "name": "Tensor memory", "id": "7", "ts": 2.5},
        ),
        (
            TRACK.object_event("O", "Tensor memory", -1, 3_500, '{"bytes":8}'),
            {"ph": "O", "cat": "memory", "name": "Tensor memory", "id": "-1", "ts": 2.5}
            | {"args": {"snapshot": {"bytes": 8}}},
        ),
        (
            TRACK.counter("cpu memory", "bytes in use", 8, 3_500),
            {"ph": "C", "cat": "memory", "name": "cpu memory", "ts": 2.5}
            | {"args": {"bytes in use": 8}},
        ),
    ],
    ids=lambda value: value["ph"] if isinstance(value, dict) else "",
)
def test_an_event_is_json_with_its_fields_and_its_place(
    event: str, expected: dict[str, Any]
) -> None:
    assert json.loads(event) == expected | WHERE


@pytest.mark.parametrize(
    ("time_ns", "expected"),
    [
        (1_000, "0.000"),
        (1_001, "0.001"),
        (1_999, "0.999"),
        (2_000, "1.000"),
        (1_000_001_050, "1000000.050"),
        (1_790_857_026_123_457_789, "1790857026123456.789"),  # a float has less digits
    ],
)
def test_times_are_microseconds_since_the_base(time_ns: int, expected: str) -> None:
    assert f'"ts":{expected},' in TRACK.flow_start("", "", 1, time_ns)


@given(st.integers(0, 2**62), st.integers(0, 2**50), st.integers(0, 2**50))
def test_times_are_exact_to_the_nanosecond(base: int, since: int, took: int) -> None:
    start = base + since
    event = json.loads(
        Track(1, 2, base).span("", "", start, start + took), parse_float=Decimal
    )
    assert (event["ts"] * 1_000, event["dur"] * 1_000) == (since, took)


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


@given(st.sampled_from(list(KINDS.values())), st.text())
def test_random_names_stay_what_they_are(make: Callable[[str], str], name: str) -> None:
    event = make(name)
    assert json.loads(event)["name"] == name
    assert event.isascii()
    assert "\n" not in event
