"""What a whole program did."""

from __future__ import annotations

from dataclasses import dataclass

from torchprof_hooks.profiles.profile import Profile


@dataclass(frozen=True, slots=True)
class ProgramProfile:
    """The profile of a program, from its first import of torch to its end.

    message: what was run.
    profile: of the thread that imported torch.
    program_ns: time since the package was first imported by it.
    sampled_steps: in how many of the steps functions were measured.
    """

    message: str
    profile: Profile
    program_ns: int
    sampled_steps: int = 0
