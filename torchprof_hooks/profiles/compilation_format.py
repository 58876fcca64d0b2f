"""Summaries of torch.compile as plain JSON types."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, get_args

from torchprof_hooks.profiles.checked import (
    checked_integer,
    checked_text,
)
from torchprof_hooks.profiles.compilation import (
    CacheAnswer,
    CacheUse,
    CompilationSummary,
    CompiledGraph,
    CompileStage,
    GraphBreak,
    GraphKind,
)


def to_json(summary: CompilationSummary) -> dict[str, Any]:
    """The content of a summary.

    Example::

        {"timed": 3, "first_ns": ...,
         "stages": [{"name": "Dynamo", "ns": ..., "calls": 3, "parts": [...]}],
         "overlapping": [{"name": "compile_attempt_0", ...}],
         "graphs": [{"function": "forward", "place": "train.py:31",
                     "compile_id": "0/0", "kind": "forward", ...}],
         "graph_breaks": [{"function": ..., "place": ..., "reason": ..., "times": 1}],
         "caches": [{"name": "FX graphs", "hits": 0, "misses": 2, "bypasses": 0}]}
    """
    return {
        "timed": summary.timed,
        "first_ns": summary.first_ns,
        "stages": [asdict(stage) for stage in summary.stages],
        "overlapping": [asdict(stage) for stage in summary.overlapping],
        "graphs": [graph._asdict() for graph in summary.graphs],
        "graph_breaks": [each._asdict() for each in summary.graph_breaks],
        "caches": [cache._asdict() for cache in summary.caches],
    }


def from_json(content: Any) -> CompilationSummary:
    """The summary that `to_json` has made `content` of.

    Raises:
        ValueError: it is something else.
    """
    try:
        return CompilationSummary(
            stages=tuple(map(_stage, content["stages"])),
            overlapping=tuple(map(_stage, content["overlapping"])),
            timed=checked_integer(content["timed"]),
            graphs=tuple(map(_graph, content["graphs"])),
            graph_breaks=tuple(map(_graph_break, content["graph_breaks"])),
            caches=tuple(map(_cache, content["caches"])),
            first_ns=checked_integer(content["first_ns"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a summary of compiling is damaged: {error!r}") from error


def _stage(fields: dict[str, Any]) -> CompileStage:
    return CompileStage(
        checked_text(fields["name"]),
        checked_integer(fields["ns"]),
        checked_integer(fields["calls"]),
        tuple(map(_stage, fields["parts"])),
    )


def _graph(fields: dict[str, Any]) -> CompiledGraph:
    operations, kind, cache = fields["operations"], fields["kind"], fields["cache"]
    if kind not in get_args(GraphKind) or cache not in get_args(CacheAnswer):
        raise ValueError(f"{kind!r} or {cache!r} is unknown")
    return CompiledGraph(
        function=checked_text(fields["function"]),
        place=checked_text(fields["place"]),
        compile_id=checked_text(fields["compile_id"]),
        start_ns=checked_integer(fields["start_ns"]),
        ns=checked_integer(fields["ns"]),
        kind=kind,
        operations=None if operations is None else checked_integer(operations),
        cache=cache,
        recompile_reason=checked_text(fields["recompile_reason"]),
        failure=checked_text(fields["failure"]),
    )


def _graph_break(fields: dict[str, Any]) -> GraphBreak:
    function, place, reason = map(fields.__getitem__, GraphBreak._fields[:3])
    return GraphBreak(
        checked_text(function),
        checked_text(place),
        checked_text(reason),
        checked_integer(fields["times"]),
    )


def _cache(fields: dict[str, Any]) -> CacheUse:
    counts = [checked_integer(fields[name]) for name in CacheUse._fields[1:]]
    return CacheUse(checked_text(fields["name"]), *counts)
