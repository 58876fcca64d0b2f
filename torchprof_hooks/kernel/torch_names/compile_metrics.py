"""What torch.compile has done, read from its private records.

It keeps these records anyway; this only reads them. Where torch has not imported its
compiler, or a name is gone, they are empty.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from torchprof_hooks.profiles.compilation import (
    CompilationSummary,
    CompiledGraph,
    GraphBreak,
    GraphKind,
)

#: Torch's names for a whole compilation: of a function, and of a backward graph when it
#: is first run.
_COMPILATIONS: Final = ("_compile.compile_inner", "backward._backward_impl")
#: Prefix of torch's name for the rest of a function after a graph break.
_RESUMED: Final = "torch_dynamo_resume_in_"
#: Reasons of graph breaks in which torch names only a bytecode -> what they mean.
_BYTECODE_REASONS: Final = {
    "generic_jump": "Data-dependent branching",
    "step_unsupported": "Unsupported bytecode",
}
_LONGEST_REASON: Final = 400

#: Times that a running graph spends on choices: autotuning, recording CUDA graphs.
_RUN_TIMES: Final = ("runtime_triton_autotune_time_us", "runtime_cudagraphify_time_us")

#: How often code was found in a cache, on this machine or on another one.
_CACHE_HITS: Final = tuple(
    f"{cache}_{place}_cache_hit_count"
    for cache in ("inductor_fx", "aotautograd")
    for place in ("local", "remote")
)


def read_compilation() -> CompilationSummary:
    """What torch.compile has done in this process so far. Never imports it.

    ``read_compilation().since(earlier)`` is what it has done after an earlier reading.
    """
    timed = _durations_ns()
    return CompilationSummary(
        timed=len(timed),
        timed_ns=sum(timed),
        graphs=tuple(_graphs()),
        graph_breaks=tuple(_graph_breaks()),
        first_ns=timed[0] if timed else 0,
    )


def _durations_ns() -> list[int]:
    """What compilations took, as torch times them: all of them since the last
    ``torch._dynamo.reset()``."""
    timings = _dynamo("compilation_time_metrics") or {}
    calls = (list(timings.get(name, ())) for name in _COMPILATIONS)
    return [max(round(seconds * 1e9), 0) for each in calls for seconds in each]


def _graph_breaks() -> Iterator[GraphBreak]:
    """Graph breaks, counted by place; if torch has forgotten the place, by reason.
    Torch does not count breaks at branches, but keeps their places."""
    placed: Counter[GraphBreak] = Counter()
    texts: Counter[str] = Counter()
    for found in list(_dynamo("graph_break_reasons") or ()):
        reason = str(getattr(found, "reason", ""))
        stack = getattr(found, "user_stack", None)
        function, place = "", ""
        if stack:
            innermost = stack[-1]
            function = _function(innermost.name)
            place = _place(innermost.filename, innermost.lineno)
        placed[GraphBreak(function, place, one_line(reason), 1)] += 1
        texts[reason] += 1
    counters = _dynamo("counters") or {}
    counts = dict(counters["graph_break"]) if "graph_break" in counters else {}
    for reason, times in counts.items():
        if times > texts[reason]:
            forgotten = GraphBreak("", "", one_line(reason), 1)
            placed[forgotten] += times - texts[reason]
    for each, times in placed.most_common():
        yield each._replace(times=times)


def _graphs() -> Iterator[CompiledGraph]:
    """The compilations that torch has a record of: it keeps only the latest."""
    read = _dynamo("get_compilation_metrics")
    code_by_frame: dict[str, tuple[str, str]] = {}
    for record in read() if read is not None else ():
        found: dict[str, Any] = getattr(record, "__dict__", {})
        compile_id = str(found.get("compile_id") or "")
        frame = compile_id.partition("/")[0]
        if found.get("co_name"):
            place = _place(found.get("co_filename"), found.get("co_firstlineno"))
            code_by_frame[frame] = _function(found["co_name"]), place
        yield _graph(compile_id, code_by_frame.get(frame, ("", "")), found)


def _graph(
    compile_id: str, code: tuple[str, str], found: Mapping[str, Any]
) -> CompiledGraph:
    kind = _kind(found)
    time_us = found.get("duration_us")
    if time_us is None:
        time_us = 1e6 * (found.get("entire_frame_compile_time_s") or 0)
    if kind == "run":
        time_us = min(time_us, sum(found.get(name) or 0 for name in _RUN_TIMES))
    failure = found.get("fail_type") or ""
    return CompiledGraph(
        *code,
        compile_id,
        start_ns=1000 * int(found.get("start_time_us") or 0),
        ns=round(1000 * time_us),
        kind=kind,
        recompile_reason=one_line(found.get("recompile_reason") or ""),
        failure=failure and one_line(str(found.get("fail_reason") or failure)),
        is_cached=any(found.get(name) for name in _CACHE_HITS),
    )


def _kind(found: Mapping[str, Any]) -> GraphKind:
    if found.get("is_runtime"):
        return "run"
    return "backward" if found.get("is_forward") is False else "forward"


def one_line(reason: str) -> str:
    """A reason of torch's in one line, without hints and links: title and explanation;
    for a guard, the condition that failed, without the line of code it came from."""
    head, _, rest = reason.strip().partition("\n  Explanation:")
    if rest:
        text = f"{head}: {rest.partition('  Hint:')[0].partition('  Developer')[0]}"
    else:
        text = head.partition("\n\n")[0].partition("\nUser stack trace")[0]
        number, separator, guard = text.partition(": ")
        if separator and number.replace("/", "").isdigit():
            text = guard.partition("  # ")[0]
    for bytecode, meaning in _BYTECODE_REASONS.items():
        if text.startswith(bytecode):
            text = f"{meaning} ({text})"
    return " ".join(text.split())[:_LONGEST_REASON]


def _function(name: str) -> str:
    """The user's name of a function, with a mark if this is the code that torch made of
    the rest of the function after a graph break."""
    if not name.startswith(_RESUMED):
        return name
    return name.removeprefix(_RESUMED).rpartition("_at_")[0] + ", resumed"


def _place(filename: object, line: object) -> str:
    return f"{os.path.basename(str(filename))}:{line}" if filename else ""


def _dynamo(name: str) -> Any:
    """The attribute of torch._dynamo.utils; None while that is not imported."""
    return getattr(sys.modules.get("torch._dynamo.utils"), name, None)
