"""What a trace shows: slices on their tracks, and what arrows connect."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple


class Slice(NamedTuple):
    """start_ns, end_ns: since the base time of the trace."""

    start_ns: int
    end_ns: int
    category: str
    name: str


class Trace:
    """The events of a file."""

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text(), parse_float=Decimal)
        self.events: list[dict[str, Any]] = content["traceEvents"]
        self._slices: dict[Any, list[Slice]] = {}
        for event in self.events:
            if event["ph"] == "X":
                start_ns, took_ns = (int(event[at] * 1000) for at in ("ts", "dur"))
                made = (start_ns, start_ns + took_ns, event["cat"], event["name"])
                self._slices.setdefault(event["tid"], []).append(Slice(*made))
        for track in self._slices.values():
            track.sort(key=lambda each: (each.start_ns, -each.end_ns))

    def slices(self, track: str) -> list[tuple[int, str, str]]:
        """Depth, category and name of what is on the track that is called so. A slice
        has to end in those that it begins in: viewers draw no others."""
        [thread] = {
            event["tid"]
            for event in self.events
            if event["name"] == "thread_name" and event["args"]["name"] == track
        }
        found, around = [], list[Slice]()
        for each in self._slices[thread]:
            while around and around[-1].end_ns <= each.start_ns:
                around.pop()
            assert not around or each.end_ns <= around[-1].end_ns
            found.append((len(around), each.category, each.name))
            around.append(each)
        return found

    def flows(self) -> list[tuple[str, str, str]]:
        """Name of the slice that each arrow comes from, that it goes to, and its own
        name, in the order of where they go to."""
        arrows = [each for each in self.events if each.get("cat") == "dataflow"]
        starts, ends = (
            {each["id"]: each for each in arrows if each["ph"] == phase}
            for phase in "sf"
        )
        assert starts.keys() == ends.keys()
        order = sorted(starts, key=lambda n: (ends[n]["ts"], starts[n]["ts"]))
        return [
            (self._around(starts[n]), self._around(ends[n]), starts[n]["name"])
            for n in order
        ]

    def _around(self, event: dict[str, Any]) -> str:
        """The name of the innermost slice in which one end of an arrow is."""
        at_ns = int(event["ts"] * 1000)
        inside = [
            each
            for each in self._slices[event["tid"]]
            if each.start_ns <= at_ns <= each.end_ns
        ]
        return inside[-1].name
