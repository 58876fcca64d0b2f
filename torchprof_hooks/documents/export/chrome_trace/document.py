"""Adds events to a trace that torch has written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_NO_EVENTS: Final = re.compile(rb"\s*\]")
_BASE: Final = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
#: The end of torch's file behind the events: lists of warnings, if there are any (up to
#: torch 2.10, builds for CUDA warn if there is no device), and the name of the file. If
#: anything else follows the events, the text was cut off.
_CLOSING: Final = re.compile(
    rb"(?<=[\s\[}])\]"
    rb'((?:\s*,\s*"[A-Z]+"\s*:\s*\[(?:[\s,]|"(?:[^"\\\n]|\\.)*")*\])*)'
    rb'(\s*,\s*"traceName"\s*:\s*"[^\n]*"\s*)?\s*\}\s*$'
)
#: `_CLOSING` begins at most this far from the end of the file.
_CLOSING_BYTES: Final = 1 << 14


class TraceDocument:
    """A Chrome trace by torch, to which events can be added. It is never parsed: that
    would take longer than to write it.

    Raises:
        ValueError: the trace is incomplete, or torch has not written it.
    """

    def __init__(self, text: bytes) -> None:
        begin = _EVENTS.search(text)
        closing = _CLOSING.search(text, max(0, len(text) - _CLOSING_BYTES))
        if begin is None or closing is None:
            raise ValueError("torch wrote no complete trace; is there enough space?")
        self._text = memoryview(text)  # parts of it are written, never copied
        self._begin = begin.end()
        self._end = closing.start()
        self._complaints = closing[1]
        self._has_events = _NO_EVENTS.match(text, self._begin) is None
        base = _BASE.search(text, 0, self._begin)
        #: The zero of the times in the trace, in nanoseconds since the Unix epoch.
        self.base_ns = int(base[1]) if base else 0

    def with_events(
        self, events: Iterable[str], name: str, metadata: Mapping[str, Any]
    ) -> Iterator[bytes | memoryview]:
        """The pieces of the trace, with these events in front of its own, and with our
        metadata.

        name: the name of the file, which replaces that of torch's file.
        """
        yield self._text[: self._begin]
        separator = b"\n"
        for event in events:
            yield separator + event.encode()
            separator = b",\n"
        if self._has_events:
            yield separator
        yield self._text[self._begin : self._end]
        entries = {"traceName": name, "torchprof_hooks": dict(metadata)}
        yield b"]" + self._complaints + b"," + json.dumps(entries)[1:].encode() + b"\n"
