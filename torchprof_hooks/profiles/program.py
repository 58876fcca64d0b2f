"""What is known of a whole program besides its times. The module is small, since it is
imported while the measured program runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add
from typing import Final, NamedTuple

from torchprof_hooks.profiles.compilation import CompilationSummary


class OptimizerFacts(NamedTuple):
    """A group of optimizers that have stepped, and differ in their tensors only.

    name: their class.
    parameters: how many tensors they update, together.
    can_fuse, is_fused: whether they have a fused form, and whether they use it.
    device: kind of the device that all parameters are on ("cpu", "cuda"); "" if they
        are on several.
    optimizers: how many there are.
    """

    name: str
    parameters: int
    can_fuse: bool
    is_fused: bool
    device: str = ""
    optimizers: int = 1


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """Facts that tips need.

    optimizers: those that have stepped.
    detects_anomalies: whether autograd's anomaly mode was on in a step, or when these
        facts were gathered.
    """

    optimizers: tuple[OptimizerFacts, ...] = ()
    detects_anomalies: bool = False


class MeasuredSteps(NamedTuple):
    """How many steps of a run were measured. Evaluation calls count as steps here. What
    is inside of a part of the run (a model, its backward) is scaled from measured steps
    to the part's time in all steps. Zeros: every step was measured.

    steps: how many there were.
    measured: in how many of them modules, and functions if wanted, were measured.
    traced, traced_ns: how many steps were traced, and how long they took. No row
        contains that time.
    """

    steps: int = 0
    measured: int = 0
    traced: int = 0
    traced_ns: int = 0

    @property
    def are_all(self) -> bool:
        """Whether all steps were measured."""
        return self.measured == self.steps

    @property
    def share(self) -> float:
        """The share of the steps that were measured; 1.0 without steps."""
        return self.measured / self.steps if self.steps else 1.0

    def merge(self, other: MeasuredSteps) -> MeasuredSteps:
        """The steps of both runs. A run in which all were measured has zeros here, so
        its steps are left out."""
        return MeasuredSteps(*map(add, self, other))


#: All were measured.
NO_STEPS: Final = MeasuredSteps()


@dataclass(frozen=True, slots=True)
class Program:
    """What is known of a whole program, from its first import of torch to its end.

    message: what was run.
    program_ns: time since the program first imported this package.
    compilation: what torch.compile did.
    facts: what tips need to know besides times.
    """

    message: str = ""
    program_ns: int = 0
    compilation: CompilationSummary = field(default_factory=CompilationSummary)
    facts: ProgramFacts = field(default_factory=ProgramFacts)


def only_program(one: Program | None, other: Program | None) -> Program | None:
    """The program of two merged runs: None if both are of a program."""
    return None if one and other else one or other
