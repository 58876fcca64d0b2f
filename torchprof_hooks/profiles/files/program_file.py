"""What files have of a whole program, besides its profile.

::

    {..., "program": {"message": ..., "program_ns": ..., "overhead_ns": ...,
                      "has_warm_up": ..., "not_replayed": ...,
                      "strata": {"warm_up": {"steps": ..., "steps_ns": ...,
                                             "profile": {...}}, ...},
                      "compilation": {"stages": [{"name": "Dynamo", ...}], ...},
                      "replay": null or {"step": ..., "devices": [...],
                                         "rows": [{..., "outputs": [
                                             ["c", 12, "float32", [3]], ["v", 0]]}]},
                      "facts": {"optimizers": [{...}], ...}}}

All that is around it is the file of a profile (see `profile_file`): that of all strata.
The fields are those of `ProgramProfile` and what is in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchprof_hooks.profiles.files import profile_file
from torchprof_hooks.profiles.files.formats import SCHEMA
from torchprof_hooks.profiles.files.profile_file import PROGRAM, decoded, read, to_json
from torchprof_hooks.profiles.files.versions import HEADER, settle_debts
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program import ProgramProfile


def save_program(program: ProgramProfile, path: str | Path) -> None:
    """Write the profile of a program to a file that `Profile.load` reads, too.

    Raises:
        OSError: the file cannot be written.
    """
    content: dict[str, Any] = SCHEMA.of(ProgramProfile).encode(program)
    for stratum in content["strata"].values():
        settle_debts(stratum["profile"])
    whole = to_json(program.whole)
    profile_file.write(path, {**HEADER, **whole, PROGRAM: content})


def load_program(path: str | Path) -> ProgramProfile:
    """Read what `save_program` has written.

    Raises:
        ValueError: the file is no profile, of no whole program, or damaged.
        OSError: it cannot be read.
    """
    content = read(path)
    program = content.pop(PROGRAM, None)
    decoded(Profile, path, content)  # complains if it is none
    if program is None:
        raise ValueError(f"{path} is not the profile of a whole program")
    return decoded(ProgramProfile, path, program)
