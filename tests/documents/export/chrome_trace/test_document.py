"""What torch's profiler writes, with events of ours put in."""

from __future__ import annotations

import json
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
END = b"""
  ],"traceName": "/tmp/xyz/trace.json" }"""
COMPLAINT = b"""
  ],
      "ERROR": ["ERROR:2026-11-22 Device.cpp:47] \\"count\\" [35], failed", "again"],
  "traceName": "/tmp/xyz/trace.json"
}"""
COMPLETE = HEAD + EVENT + b"," + EVENT + END


def merged(text: bytes, *events: str, name: str = "timeline-7.json") -> Any:
    return json.loads(b"".join(TraceDocument(text).with_events(events, name, {})))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (COMPLETE, 1_790_857_026_000_000_000),
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


def test_what_torch_complains_of_is_kept() -> None:
    found = merged(HEAD + EVENT + COMPLAINT)
    said = 'ERROR:2026-11-22 Device.cpp:47] "count" [35], failed'
    assert found["ERROR"] == [said, "again"]
    assert found["traceName"] == "timeline-7.json"


NOT_COMPLETE: dict[str, bytes] = {
    "empty": b"",
    "without its last character": COMPLETE[:-1],
    "cut in the name": COMPLETE[: COMPLETE.index(b'"/tmp')],
    "cut between events": HEAD + EVENT + b",",
    "cut in an event": HEAD + EVENT + EVENT[:60],
    "cut ahead of the events": HEAD,
    "cut in the head": HEAD[:100],
    "cut behind an event": b'{"traceEvents": [\n {"x":1},\n {"x":2}\n',
    "cut behind a bracket": b'{"traceEvents": [\n {"x": {"y": [1, 2]}',
    "without events": b"{}",
    "events that are no list": b'{"traceEvents": {}}',
    "a list": b"[]",
    "something else": b"\x1f\x8b\x08\x00 compressed }",
}


@pytest.mark.parametrize("situation", NOT_COMPLETE)
def test_what_is_no_complete_trace_is_refused(situation: str) -> None:
    with pytest.raises(ValueError, match="no complete trace; is there enough space"):
        TraceDocument(NOT_COMPLETE[situation])


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
    document = merged(text, json.dumps(ours))
    assert document == {
        **original,
        "traceEvents": [ours, *original["traceEvents"]],
        "traceName": "timeline-7.json",
        "torchprof_hooks": {},
    }
    assert set(names) <= {event.get("name") for event in document["traceEvents"]}
    assert TraceDocument(text).base_ns == original.get("baseTimeNanoseconds", 0)
