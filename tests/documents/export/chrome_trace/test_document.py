from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile, record_function

from torchprof_hooks.documents.export.chrome_trace.document import TraceDocument

#: The way torch writes it: what is ahead of the events, one of them, what is behind.
HEAD = b"""
{
    "schemaVersion": 1,
    "deviceProperties": [],

      "host_name": "vm",
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 1790857026000000000,
    "traceEvents": [
    """
EVENT = b"""
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1,
    "ts": 43.125, "dur": 67.951
    ,
    "args": {
      "External id": 8,"Ev Idx": 7
    }
  }"""
NAMED = b"""
  ],"traceName": "/tmp/xyz/trace.json" }"""
UNNAMED = b"""
  ]}
"""
COMPLAINING = b"""
  ],
      "ERROR": ["ERROR:2026-11-22 Device.cpp:47] \\"count\\" [35], failed", "again"],
  "traceName": "/tmp/xyz/trace.json"
}"""


def merged(
    text: bytes,
    *events: str,
    name: str = "timeline-7.json",
    metadata: Mapping[str, Any] | None = None,
) -> Any:
    pieces = TraceDocument(text).with_events(events, name, metadata or {})
    return json.loads(b"".join(pieces))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEAD + EVENT + NAMED, 1_790_857_026_000_000_000),
        (b'{"baseTimeNanoseconds":12,"traceEvents":[]}', 12),
        (b'{"traceEvents":[]}', 0),
        (b'{"traceEvents":[{"args":{"baseTimeNanoseconds": 12}}]}', 0),
    ],
)
def test_the_base_is_what_torch_says_and_else_the_epoch(
    text: bytes, expected: int
) -> None:
    assert TraceDocument(text).base_ns == expected


#: Any, and such as look like parts of the format.
NAMES = st.text() | st.sampled_from(["]", "], [", "}", "traceName", '"traceEvents": ['])


@given(
    host=st.text(),
    ours=st.lists(st.text(), max_size=3),
    theirs=st.lists(NAMES, max_size=3),
    name=NAMES,
    indent=st.sampled_from([None, 0, 2]),
)
def test_all_that_is_valid_stays_valid(
    host: str, ours: list[str], theirs: list[str], name: str, indent: int | None
) -> None:
    document = {
        "host": host,
        "traceEvents": [{"name": event} for event in theirs],
        "traceName": name,
    }
    text = json.dumps(document, indent=indent, ensure_ascii=False).encode()
    own_events = [{"name": event} for event in ours]
    assert merged(text, *map(json.dumps, own_events), name=name) == {
        **document,
        "traceEvents": own_events + document["traceEvents"],  # type: ignore[operator]
        "torchprof_hooks": {},
    }


COMPLETE = HEAD + EVENT + b"," + EVENT + NAMED


def test_what_torch_complains_of_is_kept() -> None:
    found = merged(HEAD + EVENT + COMPLAINING)

    assert found["ERROR"] == [
        'ERROR:2026-11-22 Device.cpp:47] "count" [35], failed',
        "again",
    ]
    assert found["traceName"] == "timeline-7.json"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="empty"),
        pytest.param(COMPLETE[:-1], id="without its last character"),
        pytest.param(COMPLETE[: COMPLETE.index(b'"/tmp')], id="cut in the name"),
        pytest.param(HEAD + EVENT + b",", id="cut between events"),
        pytest.param(HEAD + EVENT + EVENT[:60], id="cut in an event"),
        pytest.param(HEAD, id="cut ahead of the events"),
        pytest.param(HEAD[:100], id="cut in the head"),
        pytest.param(b'{"traceEvents": [\n {"x":1},\n {"x":2}\n', id="cut 1"),
        pytest.param(b'{"traceEvents": [\n {"x": {"y": [1, 2]}', id="cut 2"),
        pytest.param(b"{}", id="an object without events"),
        pytest.param(b'{"traceEvents": {}}', id="an object that is no list"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"\x1f\x8b\x08\x00 compressed }", id="something else"),
    ],
)
def test_what_is_no_complete_trace_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="no complete trace; is there enough space"):
        TraceDocument(text)


@pytest.mark.parametrize("names", [[], ["step", "traceName", "] }, {"]])
def test_what_torch_writes(names: list[str], tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for event_name in names:
            with record_function(event_name):
                torch.ones(2).add(1)
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    text = path.read_bytes()
    original = json.loads(text)
    ours = {"ph": "X", "name": "ours"}

    document = merged(text, json.dumps(ours), name="timeline-7.json")

    assert document.pop("torchprof_hooks") == {}
    assert document == {
        **original,
        "traceEvents": [ours, *original["traceEvents"]],
        "traceName": "timeline-7.json",
    }
    assert set(names) <= {event.get("name") for event in document["traceEvents"]}
    assert TraceDocument(text).base_ns == original.get("baseTimeNanoseconds", 0)
