"""Single events of a Chrome trace, as JSON. There are thousands in a trace of a step:
they are put together by hand, which takes a third of what `json.dumps` would take."""

from __future__ import annotations

import json
from functools import lru_cache
from math import floor
from typing import Final

#: Makes a string JSON; names repeat.
quoted: Final = lru_cache(maxsize=1 << 14)(json.dumps)


class Place:
    """Where events appear: a thread of a process, or a track of its own beside them.

    base_ns: the moment from which the trace's times count.
    """

    def __init__(self, process: int, thread: int, base_ns: int) -> None:
        self._where = f'"pid":{process},"tid":{thread}'
        self._base_ns = base_ns

    def _at(self, time_ns: int) -> str:
        micros, nanos = divmod(time_ns - self._base_ns, 1000)
        return f'"ts":{micros}.{nanos:03d},{self._where}'

    def _as_read(self, time_ns: int) -> int:
        """The time as viewers know it: they make floating-point numbers of
        microseconds, which cannot tell nanoseconds apart beyond 2^42 microseconds.
        torch counts from further back than that. The rounding is Perfetto's."""
        read_ns = (time_ns - self._base_ns) / 1000 * 1000
        # Not by adding a half: beyond 2^52, that is rounded itself.
        below_ns = floor(read_ns)
        return below_ns + (read_ns - below_ns >= 0.5)

    def metadata(self, name: str, args: str) -> str:
        """A name or a sort index for the process or the thread."""
        return f'{{"ph":"M","name":{quoted(name)},{self._where},"args":{args}}}'

    def span(
        self, name: str, category: str, start_ns: int, end_ns: int, **args: str
    ) -> str:
        """A slice."""
        # Slices that begin or end together must do so for the viewer, too.
        duration_ns = self._as_read(end_ns) - self._as_read(start_ns)
        micros, nanos = divmod(duration_ns, 1000)
        more = f',"args":{json.dumps(args)}' if args else ""
        return (
            f'{{"ph":"X","cat":"{category}","name":{quoted(name)},'
            f'{self._at(start_ns)},"dur":{micros}.{nanos:03d}{more}}}'
        )

    def flow_start(self, name: str, category: str, number: int, time_ns: int) -> str:
        """The beginning of an arrow, out of the slice that is innermost at the time."""
        return self._flow('"ph":"s"', name, category, number, time_ns)

    def flow_end(self, name: str, category: str, number: int, time_ns: int) -> str:
        """The end of the arrow with this number."""
        return self._flow('"ph":"f","bp":"e"', name, category, number, time_ns)

    def _flow(
        self, phase: str, name: str, category: str, number: int, time_ns: int
    ) -> str:
        return (
            f'{{{phase},"cat":"{category}","name":{quoted(name)},"id":{number},'
            f"{self._at(time_ns)}}}"
        )

    def object_event(
        self, phase: str, name: str, number: int, time_ns: int, snapshot: str = ""
    ) -> str:
        """An object is created ("N"), has this snapshot ("O"), or is deleted ("D")."""
        args = f',"args":{{"snapshot":{snapshot}}}' if snapshot else ""
        return (
            f'{{"ph":"{phase}","cat":"memory","name":{quoted(name)},"id":"{number}",'
            f"{self._at(time_ns)}{args}}}"
        )

    def counter(self, name: str, series: str, value: int, time_ns: int) -> str:
        """The value of a counter from now on."""
        return (
            f'{{"ph":"C","cat":"memory","name":{quoted(name)},{self._at(time_ns)},'
            f'"args":{{{quoted(series)}:{value}}}}}'
        )
