"""What is known of a whole program besides its times."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchprof_hooks.profiles.compilation import CompilationSummary
from torchprof_hooks.profiles.optimizers import OptimizerFacts


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """Facts that tips need.

    optimizers: those that have stepped.
    detects_anomalies: whether autograd's anomaly mode was on in a step, or when these
        facts were gathered.
    """

    optimizers: tuple[OptimizerFacts, ...] = ()
    detects_anomalies: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """What is known of a whole program, from its first import of torch to its end.

    message: what was run.
    program_ns: time since the program first imported this package.
    compilation: what torch.compile did.
    facts: what tips need to know besides times.
    ended_by: the exception that ended it, and the innermost module that this came out
        of; "" if none did.
    """

    message: str = ""
    program_ns: int = 0
    compilation: CompilationSummary = field(default_factory=CompilationSummary)
    facts: ProgramFacts = field(default_factory=ProgramFacts)
    ended_by: str = ""


def only_program(one: Program | None, other: Program | None) -> Program | None:
    """The program of two merged runs: None if both are of a program."""
    return None if one and other else one or other
