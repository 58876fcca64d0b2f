"""Profiles, and what is known of a whole program, as JSON files.

Version 5::

    {"format": "torchprof_hooks profile", "version": 5,
     "wall_ns": ..., "steps": ..., "aborted_calls": ..., "overhead_ns": ...,
     "device_asked": ..., "device_waits": ...,
     "devices": [...],
     "memory": null or {"source": ..., "is_net": ..., "peak_bytes": ...,
                        "peak_path": [name, ...], "peak_phase": ...,
                        "unavailable": ...},
     "undivided_passes": ..., "unmeasured_steps": ..., "unmeasured_ns": ...,
     "not_measured": [...],
     "step_times": {"first_steps": ..., "first_ns": ...,
                    "later": [{"number": ..., "steps": ..., "total_ns": ...}, ...],
                    "evaluations": ..., "evaluation_ns": ...,
                    "waits": [{"number": ..., "steps": ..., "total_ns": ...}, ...],
                    "first_evaluations": ..., "first_evaluation_ns": ...},
     "provenance": [{"rank": ..., "world_size": ..., "host": ..., ...}],
     "collectives": [{"name": ..., "group": ..., "group_size": ..., "calls": ..., ...}],
     "modules": {name: {"class_name": ..., "kind": ..., "aliases": [...],
                        "compiled": ..., "order": ..., "implementation": ...,
                        "inputs": [...], "autocast": ..., "place": ...}},
     "cells": {"names": [name, ...], "path": [[0, 1], ...], "phase": [...],
               "calls": [...], ..., "flops": [...], "overhead_ns": [...],
               "device_overhead_ns": [...],
               "used_bytes": [...], ...}}

A number in a path is the position of a name in "names". The file of a whole program has
one field more; the rest is the profile of all its steps::

    {..., "program": {"message": ..., "program_ns": ..., "overhead_ns": ...,
                      "has_warm_up": ...,
                      "strata": {"warm_up": {"steps": ..., "steps_ns": ...,
                                             "profile": {...}}, ...},
                      "compilation": {"stages": [{"name": "Dynamo", ...}], ...},
                      "device_idle": {...}, "facts": {"optimizers": [{...}], ...},
                      "rates": {"peak": {...}, "items_per_step": ...}}}

The fields are those of `Profile`, `ProgramProfile` and the records in them, which say
what each may hold. A field that is `OPTIONAL` is left out where it has its default, one
that is `DERIVED` always. A file with other fields is damaged, or of a newer version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.files.cell_table import of_cells
from torchprof_hooks.profiles.files.codec import (
    content_of,
    of_maps,
    read_json,
    remembering,
)
from torchprof_hooks.profiles.files.schema import Schema
from torchprof_hooks.profiles.files.versions import HEADER, newest, settle_debts
from torchprof_hooks.profiles.files.writing import replaced_file
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.ranks.provenance import Processes
from torchprof_hooks.profiles.totals import Totals

if TYPE_CHECKING:
    from torchprof_hooks.profiles.profile import Profile
    from torchprof_hooks.profiles.program.program_profile import ProgramProfile

#: The additional field in the file of a whole program.
_PROGRAM: Final = "program"
#: The field that says which processes a file comes from.
_PROVENANCE: Final = "provenance"


def save(profile: Profile, path: str | Path) -> None:
    """See `Profile.save`."""
    _write(path, _to_json(profile))


def load(kind: type[Profile], path: str | Path) -> Profile:
    """See `Profile.load`."""
    content = _read(path)
    content.pop(_PROGRAM, None)
    found: Profile = _decoded(kind, path, content)
    return found


def save_program(program: ProgramProfile, path: str | Path) -> None:
    """See `ProgramProfile.save`."""
    content: dict[str, Any] = SCHEMA.of(type(program)).encode(program)
    for stratum in content["strata"].values():
        settle_debts(stratum["profile"])
    _write(path, {**_to_json(program.whole), _PROGRAM: content})


def load_program(
    kind: type[ProgramProfile], whole: type[Profile], path: str | Path
) -> ProgramProfile:
    """See `ProgramProfile.load`."""
    content = _read(path)
    if _PROGRAM not in content:
        raise ProfileFileError(f"{path} is not the profile of a whole program")
    found = _program(kind, path, content)
    del content[_PROGRAM]
    _decoded(whole, path, content)  # damage in the rest of the file is told, too
    return found


def load_any(
    program: type[ProgramProfile], profile: type[Profile], path: str | Path
) -> ProgramProfile | Profile:
    """The profile of a whole program, if the file has one; otherwise the profile. Only
    what is returned is checked.

    Raises: as `load`.
    """
    content = _read(path)
    if _PROGRAM in content:
        return _program(program, path, content)
    found: Profile = _decoded(profile, path, content)
    return found


def provenance_of(path: str | Path) -> Processes:
    """The processes that a file is of, () if it does not say.

    Raises:
        ValueError: it is no profile.
        OSError: it cannot be read.
    """
    return _processes(path, _read(path))


def is_program(path: str | Path) -> bool:
    """Whether a file is that of a whole program.

    Raises:
        ProfileFileError: it is no profile.
        OSError: it cannot be read.
    """
    return _PROGRAM in _read(path)


def check(profile: Profile) -> None:
    """Check whether a file can hold all of a profile.

    Raises:
        ValueError: it cannot: a number is too large, for example.
    """
    SCHEMA.of(type(profile)).decode(_to_json(profile))


def _to_json(profile: Profile) -> dict[str, Any]:
    content: dict[str, Any] = SCHEMA.of(type(profile)).encode(profile)
    for long in ("modules", "cells"):
        content[long] = content.pop(long)
    settle_debts(content)
    return content


def _write(path: str | Path, content: dict[str, Any]) -> None:
    with replaced_file(path) as file:
        file.write(json.dumps({**HEADER, **content}, separators=(",", ":")))


def _read(path: str | Path) -> dict[str, Any]:
    """The content of a file, as the newest version has it, without its header."""
    content = read_json(path)
    with content_of(path):
        return newest(content)


def _program(
    kind: type[ProgramProfile], path: str | Path, content: dict[str, Any]
) -> ProgramProfile:
    found: ProgramProfile = _decoded(kind, path, content[_PROGRAM])
    return replace(found, provenance=_processes(path, content))


def _processes(path: str | Path, content: dict[str, Any]) -> Processes:
    found: Processes = _decoded(Processes, path, content.get(_PROVENANCE, []))
    return found


def _decoded(kind: Any, path: str | Path, content: Any) -> Any:
    """A record from the content of the file at `path`."""
    with content_of(path):
        return SCHEMA.of(kind).decode(content)


#: The codecs of everything in files.
SCHEMA: Final = Schema(
    {
        Mapping[CellKey, Totals]: of_cells,
        Mapping[str, ModuleInfo]: lambda s: remembering(of_maps(s.of(ModuleInfo))),
    }
)
