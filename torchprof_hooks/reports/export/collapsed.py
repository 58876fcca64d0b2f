"""Collapsed stacks: Brendan Gregg's text format, which flame graph tools read."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.reports.export.stacks import own_time_stacks

#: What would end a name or a line: readers differ in what they take for a line's end.
_SEPARATORS: Final = re.compile(r"[%;\x00-\x1f\x7f-\x9f\u2028\u2029]")


def render(profile: Profile) -> str:
    """A line for each stack: its names, outermost first and ";" between them, and its
    own time in nanoseconds. All lines add up to the wall time.

    The first name is "forward", "backward", "recompute" or "other", so that a flame
    graph is divided by these. In names, ";", "%" and line ends are written as in web
    addresses ("%3B"): the format has no way of its own.

    Example::

        forward;Net 1000
        backward;Net 2000
        forward;Net;Net.fc;linear(32x64, 64x64) 50000
        other;(optimizer) SGD 10000
    """
    return "\n".join(
        f"{';'.join(map(_escape, (stack.group, *stack.names)))} {stack.self_ns}"
        for stack in own_time_stacks(profile)
    )


def _escape(name: str) -> str:
    return _SEPARATORS.sub(lambda match: quote(match[0]), name)
