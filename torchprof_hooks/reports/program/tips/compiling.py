"""Tips on torch.compile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import Final

from torchprof_hooks.profiles.compilation import Reasons
from torchprof_hooks.reports.program.tips.evidence import Evidence, Share
from torchprof_hooks.reports.table import plural

#: From which share of a program on compiling is mentioned.
LEAST_COMPILING: Final = 0.2

_LONGEST_REASON: Final = 160


def graph_breaks(evidence: Evidence) -> Iterator[str]:
    """Code that torch.compile left to Python."""
    breaks = evidence.program.compilation.graph_breaks
    if breaks:
        most = max(breaks, key=lambda each: each.times)
        count = sum(each.times for each in breaks)
        yield (
            f"torch.compile broke graphs {plural(count, 'time')}, most at "
            f"{_code(most.function, most.place)} ({_reason(most.reason)}): code around "
            "a break is compiled apart and left to Python in between. "
            "fullgraph=True makes an error of it."
        )


def recompiles(evidence: Evidence) -> Iterator[str]:
    """Code that was compiled more than once."""
    found = evidence.program.compilation.recompiles
    if found:
        yield (
            f"torch.compile compiled code again {_times(found)}: keep what it depends "
            "on constant; sizes that change can be marked "
            "(torch._dynamo.mark_dynamic)."
        )


def compile_failures(evidence: Evidence) -> Iterator[str]:
    """Code that was not compiled although it should have been."""
    found = evidence.program.compilation.failures
    if found:
        yield f"torch.compile gave up {_times(found)}: this code ran as it is written."


def compile_time(evidence: Evidence) -> Iterator[str]:
    """A program that compiles much of its time."""
    program = evidence.program
    share = Share(program.compilation.total_ns, program.program_ns)
    if share.fraction >= LEAST_COMPILING:
        yield (
            f"torch.compile takes {share}: it pays in longer runs. Where a block is "
            "repeated, compiling the block instead of the whole model is quicker."
        )


def _times(found: Sequence[Reasons]) -> str:
    """How often, where most, and why."""
    most = max(found, key=lambda each: each.times)
    count = plural(sum(each.times for each in found), "time")
    where = _code(most.function, most.place)
    return f"{count}, most often {where} ({_reason(most.reasons[0])})"


def _code(function: str, place: str) -> str:
    parts = filter(None, (function, f"({place})" if function and place else place))
    return " ".join(parts) or "an unknown place"


def _reason(text: str) -> str:
    return shorten(text, _LONGEST_REASON, placeholder="...")
