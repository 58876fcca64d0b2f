"""Profiles as JSON files.

Version 4::

    {"format": "torchprof_hooks profile", "version": 4,
     "wall_ns": ..., "steps": ..., "aborted_calls": ..., "overhead_ns": ...,
     "devices": [...],
     "memory": null or {"source": ..., "is_net": ..., "peak_bytes": ...,
                        "peak_path": [name, ...], "peak_phase": ...,
                        "unavailable": ...},
     "undivided_passes": ..., "unmeasured_steps": ..., "unmeasured_ns": ...,
     "not_measured": [...],
     "step_times": {"first_steps": ..., "first_ns": ...,
                    "later": [{"number": ..., "steps": ..., "total_ns": ...}, ...],
                    "evaluations": ..., "evaluation_ns": ...},
     "modules": {name: {"class_name": ..., "kind": ..., "aliases": [...],
                        "compiled": ..., "order": ..., "implementation": ...,
                        "inputs": [...], "place": ...}},
     "cells": [{"path": [name, ...], "phase": ..., "calls": ..., ...,
                "flops": ..., "overhead_ns": ...,
                "memory": {"used_bytes": ..., ...}}]}

The fields are those of `Profile`, `ModuleInfo`, `Totals` and what is in them, which say
what each may be; the cumulative ones of `Totals` follow from the paths. A field that is
`OPTIONAL` is left out where it has its default. There are no others: what a file has
besides is damage, or of a newer version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torchprof_hooks.profiles.files.codec import DamageError, RepeatedFields
from torchprof_hooks.profiles.files.formats import SCHEMA
from torchprof_hooks.profiles.files.versions import HEADER, newest, settle_debts
from torchprof_hooks.profiles.files.writing import replaced_file

if TYPE_CHECKING:
    from torchprof_hooks.profiles.profile import Profile

Kind = TypeVar("Kind")

#: What the file of a whole program has besides.
PROGRAM = "program"


def save(profile: Profile, path: str | Path) -> None:
    """See `Profile.save`."""
    write(path, {**HEADER, **to_json(profile)})


def load(kind: type[Profile], path: str | Path) -> Profile:
    """See `Profile.load`."""
    content = read(path)
    content.pop(PROGRAM, None)
    return decoded(kind, path, content)


def check(profile: Profile) -> None:
    """Look whether a file can have all of it.

    Raises:
        ValueError: it has a number that is too large, say.
    """
    SCHEMA.of(type(profile)).decode(to_json(profile))


def to_json(profile: Profile) -> dict[str, Any]:
    """The content of a file, of plain Python types, without its header."""
    content: dict[str, Any] = SCHEMA.of(type(profile)).encode(profile)
    for long in ("modules", "cells"):
        content[long] = content.pop(long)
    settle_debts(content)
    return content


def write(path: str | Path, content: dict[str, Any]) -> None:
    """Write `content` as JSON, all of it or nothing (see `replaced_file`)."""
    with replaced_file(path) as file:
        json.dump(content, file, indent=1)


def read(path: str | Path) -> dict[str, Any]:
    """The content of a file, as the newest version has it, without its header.

    Raises:
        ValueError: it is not JSON, or not all of it, or not ours.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text, object_pairs_hook=RepeatedFields.dict_of)
    # A wrong encoding raises ValueError too; brackets without end, RecursionError.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a whole JSON file: {error}") from error
    try:
        return newest(content)
    except DamageError as damage:
        raise ValueError(f"{path} is damaged: {damage}") from None
    except ValueError as error:
        raise ValueError(f"{path} {error}") from None


def decoded(kind: type[Kind], path: str | Path, content: Any) -> Kind:
    """A record from what the file at `path` has of it.

    Raises:
        ValueError: there is none with this content.
    """
    try:
        record: Kind = SCHEMA.of(kind).decode(content)
    except DamageError as damage:
        raise ValueError(f"{path} is damaged: {damage}") from None
    except RecursionError:
        raise ValueError(f"{path} is damaged: it is nested too deep") from None
    return record
