"""Profiles as JSON files.

Version 3::

    {"format": "torchprof_hooks profile", "version": 3,
     "wall_ns": ..., "steps": ..., "aborted_calls": ..., "undivided_passes": ...,
     "overhead_ns": ..., "unmeasured_steps": ..., "unmeasured_ns": ...,
     "devices": [...],
     "memory": null or {"source": ..., "is_net": ..., "peak_bytes": ...,
                        "peak_path": [name, ...], "peak_phase": ...,
                        "unavailable": ...},
     "modules": {name: {"class_name": ..., "kind": ..., "aliases": [...],
                        "compiled": ..., "order": ..., "implementation": ...,
                        "inputs": [...], "place": ...}},
     "cells": [{"path": [name, ...], "phase": ..., "calls": ..., ...,
                "flops": ..., "overhead_ns": ...,
                "memory": {"used_bytes": ..., ...}}]}

A cell has the fields of `Totals` but the cumulative ones, which follow from the paths;
its operations, what measuring took of it, and its memory are left out where they are 0.
Version 2 had no phase "data": that time was in "outside"; nor operations, what
measuring took, implementations and inputs. Version 1 had neither memory nor functions
among the modules.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from torchprof_hooks.profiles.checked import (
    checked_integer,
    checked_list,
    checked_text,
    checked_texts,
    one_of,
)
from torchprof_hooks.profiles.memory import NO_MEMORY, MemorySummary, MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Kind, Phase
from torchprof_hooks.profiles.totals import Totals

if TYPE_CHECKING:
    from torchprof_hooks.profiles.profile import Profile

FORMAT = "torchprof_hooks profile"
VERSION = 3

_COUNTS = ("wall_ns", "steps", "aborted_calls", "undivided_passes", "overhead_ns")
#: Left out where they are 0.
_RARE_COUNTS = ("unmeasured_steps", "unmeasured_ns")
_CELL_FIELDS = (
    "calls",
    "self_ns",
    "min_ns",
    "max_ns",
    "duration_ns",
    "squares_ns2",
    "device_self_ns",
)
#: Left out where they are 0.
_RARE_FIELDS = ("flops", "overhead_ns")
_NO_BYTES = asdict(NO_MEMORY)


def to_json(profile: Profile) -> dict[str, Any]:
    """The content of a file, of plain Python types."""
    return {
        "format": FORMAT,
        "version": VERSION,
        **{name: getattr(profile, name) for name in _COUNTS},
        **{name: n for name in _RARE_COUNTS if (n := getattr(profile, name))},
        "devices": list(profile.devices),
        "memory": asdict(profile.memory) if profile.memory else None,
        "modules": {name: asdict(info) for name, info in profile.modules.items()},
        "cells": [
            {
                "path": list(path),
                "phase": phase,
                **{name: getattr(totals, name) for name in _CELL_FIELDS},
                **{name: n for name in _RARE_FIELDS if (n := getattr(totals, name))},
                **_cell_memory(totals.memory),
            }
            for (path, phase), totals in profile.cells.items()
        ],
    }


def from_json(path: str | Path, content: Any) -> dict[str, Any]:
    """Arguments of `Profile` from the content of the file at `path`.

    Raises:
        ValueError: it is not what `to_json` makes.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not a profile of torchprof_hooks")
    version = content.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise ValueError(
            f"{path} has version {version!r}; "
            f"this release reads versions 1 to {VERSION}"
        )
    if version == 1:
        content = {**content, "memory": None, "undivided_passes": 0}
    try:
        return _arguments(content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def write(path: str | Path, content: dict[str, Any]) -> None:
    """Write `content` as JSON; a file that was there is replaced only when all of the
    new one is on disk."""
    path = Path(path)
    writer = f"{os.getpid()}-{threading.get_ident()}"
    temporary = path.with_name(f".{path.name}.{writer}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | Path) -> Any:
    """The JSON content of a file.

    Raises:
        ValueError: it is not JSON, or not all of it.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    # A wrong encoding raises ValueError too; brackets without end, RecursionError.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a whole JSON file: {error}") from error


def _cell_memory(totals: MemoryTotals) -> dict[str, Any]:
    return {} if totals == NO_MEMORY else {"memory": asdict(totals)}


def _arguments(content: dict[str, Any]) -> dict[str, Any]:
    modules = {
        checked_text(name): _module(fields)
        for name, fields in content["modules"].items()
    }
    cells: dict[tuple[tuple[str, ...], Any], Totals] = {}
    for cell in checked_list(content["cells"]):
        path = checked_texts(cell["path"])
        if not path or not modules.keys() >= set(path):
            raise ValueError(f"a cell has the path {path}")
        key = path, one_of(get_args(Phase), cell["phase"])
        if key in cells:
            raise ValueError(f"two cells have the path {path} and the same phase")
        cells[key] = _totals(cell)
    return {
        "cells": cells,
        "modules": modules,
        "devices": checked_texts(content["devices"]),
        "memory": None if content["memory"] is None else _memory(content["memory"]),
        **{name: checked_integer(content[name]) for name in _COUNTS},
        **{name: checked_integer(content.get(name, 0)) for name in _RARE_COUNTS},
    }


def _module(fields: dict[str, Any]) -> ModuleInfo:
    return ModuleInfo(
        checked_text(fields["class_name"]),
        one_of(get_args(Kind), fields["kind"]),
        checked_texts(fields["aliases"]),
        one_of((False, True), fields["compiled"]),
        checked_integer(fields["order"]),
        checked_text(fields.get("implementation", "")),
        checked_texts(fields.get("inputs", [])),
        checked_text(fields.get("place", "")),
    )


def _totals(fields: dict[str, Any]) -> Totals:
    numbers: dict[str, Any] = {
        **{name: checked_integer(fields[name]) for name in _CELL_FIELDS},
        **{name: checked_integer(fields.get(name, 0)) for name in _RARE_FIELDS},
    }
    return Totals(
        **numbers,
        memory=_memory_totals(fields.get("memory", _NO_BYTES)),
    )


def _memory_totals(fields: dict[str, Any]) -> MemoryTotals:
    return MemoryTotals(**{name: checked_integer(fields[name]) for name in _NO_BYTES})


def _memory(fields: dict[str, Any]) -> MemorySummary:
    return MemorySummary(
        checked_text(fields["source"]),
        one_of((False, True), fields["is_net"]),
        checked_integer(fields["peak_bytes"]),
        checked_texts(fields["peak_path"]),
        one_of(get_args(Phase), fields["peak_phase"]),
        checked_text(fields["unavailable"]),
    )
