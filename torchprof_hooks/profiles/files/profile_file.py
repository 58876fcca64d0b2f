"""Profiles, and what is known of a whole program, as JSON files.

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
     "provenance": [{"rank": ..., "world_size": ..., "host": ..., ...}],
     "modules": {name: {"class_name": ..., "kind": ..., "aliases": [...],
                        "compiled": ..., "order": ..., "implementation": ...,
                        "inputs": [...], "place": ...}},
     "cells": [{"path": [name, ...], "phase": ..., "calls": ..., ...,
                "flops": ..., "overhead_ns": ...,
                "memory": {"used_bytes": ..., ...}}]}

The file of a whole program has a field more; the rest is the profile of all its steps::

    {..., "program": {"message": ..., "program_ns": ..., "overhead_ns": ...,
                      "has_warm_up": ..., "not_replayed": ...,
                      "strata": {"warm_up": {"steps": ..., "steps_ns": ...,
                                             "profile": {...}}, ...},
                      "compilation": {"stages": [{"name": "Dynamo", ...}], ...},
                      "replay": null or {"step": ..., "devices": [...],
                                         "rows": [{..., "outputs": [
                                             ["c", 12, "float32", [3]], ["v", 0]]}]},
                      "facts": {"optimizers": [{...}], ...}}}

The fields are those of `Profile`, `ProgramProfile` and the records in them, which say
what each may hold. A field that is `OPTIONAL` is left out where it has its default, one
that is `DERIVED` always. A file with other fields is damaged, or of a newer version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.files.codec import (
    Codec,
    DamageError,
    RepeatedFields,
    wrong,
)
from torchprof_hooks.profiles.files.fields import INLINE, Length
from torchprof_hooks.profiles.files.schema import Schema
from torchprof_hooks.profiles.files.versions import HEADER, newest, settle_debts
from torchprof_hooks.profiles.files.writing import replaced_file
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.ranks.provenance import Processes
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.profiles.trace.step_outputs import Output
from torchprof_hooks.profiles.trace.step_trace import TensorType

if TYPE_CHECKING:
    from torchprof_hooks.profiles.profile import Profile
    from torchprof_hooks.profiles.program.program_profile import ProgramProfile

Kind = TypeVar("Kind")

#: The field that the file of a whole program has besides.
_PROGRAM: Final = "program"

#: Names in a path: calls inside of each other. Python allows some hundred calls of
#: modules, unless it was told otherwise; nothing that reads a profile calls itself.
_DEEPEST: Final = 10_000


def save(profile: Profile, path: str | Path) -> None:
    """See `Profile.save`."""
    _write(path, _to_json(profile))


def load(kind: type[Profile], path: str | Path) -> Profile:
    """See `Profile.load`."""
    content = _read(path)
    content.pop(_PROGRAM, None)
    return _decoded(kind, path, content)


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
    program = load_most(kind, whole, path)[1]
    if program is None:
        raise ProfileFileError(f"{path} is not the profile of a whole program")
    return program


def load_most(
    kind: type[ProgramProfile], whole: type[Profile], path: str | Path
) -> tuple[Profile, ProgramProfile | None]:
    """All that a file has: a profile, and that of a whole program, if it is one.

    Raises: as `load`.
    """
    content = _read(path)
    program = content.pop(_PROGRAM, None)
    profile = _decoded(whole, path, content)
    if program is None:
        return profile, None
    found = _decoded(kind, path, program)
    return profile, replace(found, provenance=profile.provenance)


def provenance_of(path: str | Path) -> Processes:
    """The processes that a file is of, () if it does not say.

    Raises:
        ValueError: it is no profile.
        OSError: it cannot be read.
    """
    found: Processes = SCHEMA.of(Processes).decode(_read(path).get("provenance", []))
    return found


def is_program(path: str | Path) -> bool:
    """Whether a file is that of a whole program.

    Raises:
        ProfileFileError: it is no profile.
        OSError: it cannot be read.
    """
    return _PROGRAM in _read(path)


def check(profile: Profile) -> None:
    """Look whether a file can hold all of a profile.

    Raises:
        ValueError: it has a number that is too large, for example.
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
        json.dump({**HEADER, **content}, file, indent=1)


def _read(path: str | Path) -> dict[str, Any]:
    """The content of a file, as the newest version has it, without its header."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text, object_pairs_hook=RepeatedFields.dict_of)
    # A wrong encoding raises ValueError too; brackets without end, RecursionError.
    except (ValueError, RecursionError) as error:
        raise ProfileFileError(f"{path} is not a whole JSON file: {error}") from error
    try:
        return newest(content)
    except DamageError as damage:
        raise ProfileFileError(f"{path} is damaged: {damage}") from None
    except ValueError as error:
        raise ProfileFileError(f"{path} {error}") from None


def _decoded(kind: type[Kind], path: str | Path, content: Any) -> Kind:
    """A record from the content of the file at `path`."""
    try:
        record: Kind = SCHEMA.of(kind).decode(content)
    except DamageError as damage:
        raise ProfileFileError(f"{path} is damaged: {damage}") from None
    except RecursionError:
        raise ProfileFileError(f"{path} is damaged: it is nested too deep") from None
    return record


class _Cell(NamedTuple):
    """A cell, as an object of its own."""

    path: Annotated[tuple[str, ...], Length(1, _DEEPEST)]
    phase: Phase
    totals: Annotated[Totals, INLINE]


def _of_cells(schema: Schema) -> Codec:
    """Cells as a list: keys of JSON objects are texts."""
    cells = schema.of(tuple[_Cell, ...])

    def decode(content: Any) -> dict[CellKey, Totals]:
        found: dict[CellKey, Totals] = {}
        for number, (path, phase, totals) in enumerate(cells.decode(content)):
            if (path, phase) in found:
                problem = "has the path and the phase of another cell"
                raise DamageError(problem, f"[{number}]")
            found[path, phase] = totals
        return found

    def encode(value: Mapping[CellKey, Totals]) -> Any:
        return cells.encode(_Cell(key[0], key[1], value[key]) for key in value)

    return Codec(encode, decode)


def _of_outputs(schema: Schema) -> Codec:
    """An output as a list, ``["c", 12, "float32", [3]]``, or ``["v", 0]`` where its
    type is not known: there are many."""
    record = schema.record(Output)

    def encode(value: Output) -> list[Any]:
        kind, tensor, size_bytes = value
        type_fields = [] if tensor is None else [tensor.dtype, list(tensor.shape)]
        return [kind, size_bytes, *type_fields]

    def decode(content: Any) -> Any:
        if type(content) is not list or len(content) not in (2, 4):
            raise wrong(content, "a list of kind, bytes and, if known, dtype and shape")
        kind, size_bytes, *type_fields = content
        tensor = dict(zip(TensorType._fields, type_fields, strict=False))
        fields = {"kind": kind, "size_bytes": size_bytes, "tensor": tensor or None}
        return record.decode(fields)

    return Codec(encode, decode)


#: The codecs of everything in files.
SCHEMA: Final = Schema({Mapping[CellKey, Totals]: _of_cells, Output: _of_outputs})
