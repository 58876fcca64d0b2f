"""Tips on torch.compile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import Final

from torchprof_hooks.documents.build.tips.evidence import Evidence
from torchprof_hooks.documents.document import Tip
from torchprof_hooks.documents.words import plural
from torchprof_hooks.profiles.compilation import Reasons

_LONGEST_REASON: Final = 160


def graph_breaks(evidence: Evidence) -> Iterator[Tip]:
    """Code that torch.compile left to Python."""
    breaks = evidence.program.compilation.graph_breaks
    if breaks:
        most = max(breaks, key=lambda each: each.times)
        count = sum(each.times for each in breaks)
        yield Tip(
            f"torch.compile broke graphs {plural(count, 'time')}, most at "
            f"{_code(most.function, most.place)} ({_reason(most.reason)})",
            "code around a break is compiled apart and left to Python in between. "
            "fullgraph=True makes an error of it.",
        )


def recompiles(evidence: Evidence) -> Iterator[Tip]:
    """Code that was compiled more than once."""
    found = evidence.program.compilation.recompiles
    if found:
        claim = f"torch.compile compiled code again {_times(found)}"
        advice = _advice(_most_often(found))
        yield Tip(claim, f"{advice}.") if advice else Tip(f"{claim}.")


def compile_failures(evidence: Evidence) -> Iterator[Tip]:
    """Code that torch.compile failed to compile."""
    found = evidence.program.compilation.failures
    if found:
        claim = f"torch.compile gave up {_times(found)}"
        yield Tip(claim, "this code ran as it is written.")


def _times(found: Sequence[Reasons]) -> str:
    """How often it happened, where most often, and why."""
    most = _most_often(found)
    count = plural(sum(each.times for each in found), "time")
    where = _code(most.function, most.place)
    return f"{count}, most often {where} ({_reason(most.reasons[0])})"


def _most_often(found: Sequence[Reasons]) -> Reasons:
    return max(found, key=lambda each: each.times)


#: A pattern in torch's reason for a recompile, and what helps. The first match counts.
_ADVICE: Final = (
    (
        re.compile(r"size mismatch"),
        "sizes that change can be marked (torch._dynamo.mark_dynamic), or compiled as "
        "such from the beginning (torch.compile(..., dynamic=True))",
    ),
    (
        re.compile(r"stride mismatch"),
        "inputs lie in memory in another way than before: make them .contiguous()",
    ),
    (
        re.compile(r"grad_mode|inference_mode"),
        "it is called with gradients and without, or in inference mode, and needs code "
        "for each: that is done once, and to be expected where a model is both trained "
        "and evaluated",
    ),
    (
        re.compile(r"requires_grad"),
        "inputs need a gradient in some calls and not in others: .detach() them, or "
        "have it the same in all",
    ),
    (
        re.compile(r"dtype mismatch|autocast"),
        "give it inputs of one type, and call it under one setting of autocast",
    ),
    (
        re.compile(r"\.training =="),
        "model.train() and model.eval() need code for each: that is done once",
    ),
    (
        re.compile(r"___check_obj_id"),
        "an object that it depends on is another one than before: keep it, instead of "
        "making a new one for each call",
    ),
    (
        re.compile(r"^[\w.\[\]']+ == -?\d"),
        "a number that it depends on changes: give it as a tensor, or keep it",
    ),
)


def _advice(most: Reasons) -> str:
    """The advice for the most frequent reason, or ""."""
    for pattern, text in _ADVICE:
        if pattern.search(most.reasons[0]):
            return text
    return ""


def _code(function: str, place: str) -> str:
    parts = filter(None, (function, f"({place})" if function and place else place))
    return " ".join(parts) or "an unknown place"


def _reason(text: str) -> str:
    return shorten(text, _LONGEST_REASON, placeholder="...")
