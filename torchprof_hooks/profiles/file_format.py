"""Profiles as JSON files.

Version 1::

    {"format": "torchprof_hooks profile", "version": 1,
     "wall_ns": ..., "steps": ..., "aborted_calls": ..., "overhead_ns": ...,
     "devices": [...],
     "modules": {name: {"class_name": ..., "kind": ..., "aliases": [...],
                        "compiled": ..., "order": ...}},
     "cells": [{"path": [name, ...], "phase": ..., "calls": ..., ...}]}

A cell has the fields of `Totals` but the cumulative ones, which follow from the paths.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Kind, Phase
from torchprof_hooks.profiles.totals import Totals

if TYPE_CHECKING:
    from torchprof_hooks.profiles.profile import Profile

FORMAT = "torchprof_hooks profile"
VERSION = 1

_COUNTS = ("wall_ns", "steps", "aborted_calls", "overhead_ns")
_CELL_FIELDS = (
    "calls",
    "self_ns",
    "min_ns",
    "max_ns",
    "duration_ns",
    "squares_ns2",
    "device_self_ns",
)


def to_json(profile: Profile) -> dict[str, Any]:
    """The content of a file, of plain Python types."""
    return {
        "format": FORMAT,
        "version": VERSION,
        **{name: getattr(profile, name) for name in _COUNTS},
        "devices": list(profile.devices),
        "modules": {name: asdict(info) for name, info in profile.modules.items()},
        "cells": [
            {
                "path": list(path),
                "phase": phase,
                **{name: getattr(totals, name) for name in _CELL_FIELDS},
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
    if type(version) is not int or version != VERSION:
        raise ValueError(
            f"{path} has version {version!r}; this release reads version {VERSION}"
        )
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


def _arguments(content: dict[str, Any]) -> dict[str, Any]:
    modules = {
        _text(name): _module(fields) for name, fields in content["modules"].items()
    }
    cells: dict[tuple[tuple[str, ...], Any], Totals] = {}
    for cell in _list(content["cells"]):
        path = tuple(_text(name) for name in _list(cell["path"]))
        if not path or not modules.keys() >= set(path):
            raise ValueError(f"a cell has the path {path}")
        key = path, _one_of(get_args(Phase), cell["phase"])
        if key in cells:
            raise ValueError(f"two cells have the path {path} and the same phase")
        cells[key] = Totals(**{name: _integer(cell[name]) for name in _CELL_FIELDS})
    return {
        "cells": cells,
        "modules": modules,
        "devices": tuple(_text(name) for name in _list(content["devices"])),
        **{name: _integer(content[name]) for name in _COUNTS},
    }


def _module(fields: dict[str, Any]) -> ModuleInfo:
    return ModuleInfo(
        _text(fields["class_name"]),
        _one_of(get_args(Kind), fields["kind"]),
        tuple(_text(name) for name in _list(fields["aliases"])),
        _one_of((False, True), fields["compiled"]),
        _integer(fields["order"]),
    )


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _one_of(valid: tuple[Any, ...], value: Any) -> Any:
    if value not in valid:
        raise ValueError(f"{value!r} is none of {valid}")
    return value
