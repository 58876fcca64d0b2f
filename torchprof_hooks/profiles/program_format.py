"""What files have of a whole program, besides its profile.

::

    {..., "program": {"message": ..., "program_ns": ..., "overhead_ns": ...,
                      "has_warm_up": ..., "not_replayed": ...,
                      "strata": {"warm_up": {"steps": ..., "steps_ns": ...,
                                             "profile": {...}}, ...},
                      "compilation": {...}, "replay": null or {...},
                      "facts": {"optimizers": [{...}], ...}}}

All that is around it is the file of a profile (see `file_format`): that of all strata.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from torchprof_hooks.profiles import (
    compilation_format,
    file_format,
    memory_replay_format,
)
from torchprof_hooks.profiles.checked import checked_integer, checked_text, one_of
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program import ProgramProfile
from torchprof_hooks.profiles.program_facts import OptimizerFacts, ProgramFacts
from torchprof_hooks.profiles.strata import Strata, Stratum

_KEY = "program"
_STRATA = tuple(field.name for field in fields(Strata))


def save_program(program: ProgramProfile, path: str | Path) -> None:
    """Write the profile of a program to a file that `Profile.load` reads, too."""
    content = file_format.to_json(program.whole)
    file_format.write(path, {**content, _KEY: _to_json(program)})


def load_program(path: str | Path) -> ProgramProfile:
    """Read what `save_program` has written.

    Raises:
        ValueError: the file is no profile, of no whole program, or damaged.
        OSError: it cannot be read.
    """
    content = file_format.read(path)
    Profile(**file_format.from_json(path, content))  # complains if it is none
    if _KEY not in content:
        raise ValueError(f"{path} is not the profile of a whole program")
    try:
        return _from_json(path, content[_KEY])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def _to_json(program: ProgramProfile) -> dict[str, Any]:
    replay = program.replay
    return {
        "message": program.message,
        "program_ns": program.program_ns,
        "overhead_ns": program.overhead_ns,
        "has_warm_up": program.has_warm_up,
        "not_replayed": program.not_replayed,
        "strata": {
            name: _stratum_to_json(getattr(program.strata, name)) for name in _STRATA
        },
        "compilation": compilation_format.to_json(program.compilation),
        "replay": None if replay is None else memory_replay_format.to_json(replay),
        "facts": {
            **asdict(program.facts),
            "optimizers": [each._asdict() for each in program.facts.optimizers],
        },
    }


def _stratum_to_json(stratum: Stratum) -> dict[str, Any]:
    profile = file_format.to_json(stratum.profile)
    return {**stratum._asdict(), "profile": profile}


def _from_json(path: str | Path, content: dict[str, Any]) -> ProgramProfile:
    replay = content["replay"]
    return ProgramProfile(
        message=checked_text(content["message"]),
        strata=Strata(
            **{name: _stratum(path, content["strata"][name]) for name in _STRATA}
        ),
        program_ns=checked_integer(content["program_ns"]),
        overhead_ns=checked_integer(content["overhead_ns"]),
        has_warm_up=one_of((False, True), content["has_warm_up"]),
        compilation=compilation_format.from_json(content["compilation"]),
        replay=None if replay is None else memory_replay_format.from_json(replay),
        not_replayed=checked_text(content["not_replayed"]),
        facts=_facts(content["facts"]),
    )


def _stratum(path: str | Path, content: dict[str, Any]) -> Stratum:
    return Stratum(
        Profile(**file_format.from_json(path, content["profile"])),
        checked_integer(content["steps"]),
        checked_integer(content["steps_ns"]),
    )


def _facts(content: dict[str, Any]) -> ProgramFacts:
    optimizers = tuple(OptimizerFacts(**each) for each in content["optimizers"])
    return ProgramFacts(**{**content, "optimizers": optimizers})
