"""The stages of torch.compile, inside of each other, and their times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from torchprof_hooks.profiles.files.fields import Count

#: How deep stages may be inside of each other: those of torch are 4 deep.
_DEEPEST: Final = 16


@dataclass(frozen=True, slots=True)
class CompileStage:
    """A stage of compiling, with the stages inside of it.

    ns, calls: of all compilations. The parts never take longer than the whole.
    parts: in no order.
    """

    name: str
    ns: Count
    calls: Count
    parts: tuple[CompileStage, ...] = ()

    def broken_promise(self) -> str:
        """What is wrong with the values taken together, "" if nothing."""
        if self.other_ns < 0:
            return f"has parts of {self.ns - self.other_ns} ns, but ns is {self.ns}"
        if self.depth > _DEEPEST:
            return f"has parts within parts, more than {_DEEPEST} deep"
        return ""

    @property
    def depth(self) -> int:
        """How many stages are inside of each other, at most, with this one."""
        return 1 + max((part.depth for part in self.parts), default=0)

    @property
    def other_ns(self) -> int:
        """Time that is in none of the parts, in nanoseconds."""
        return self.ns - sum(part.ns for part in self.parts)

    def fitted(self) -> CompileStage:
        """The same stage. If its parts take longer than the whole, they are left out:
        then they are not parts of it after all."""
        return self if self.other_ns >= 0 else replace(self, parts=())

    def since(self, earlier: CompileStage) -> CompileStage:
        """The difference to an earlier state of this stage."""
        return CompileStage(
            self.name,
            self.ns - earlier.ns,
            self.calls - earlier.calls,
            stages_since(self.parts, earlier.parts),
        ).fitted()


def stages_since(
    stages: Iterable[CompileStage], earlier: Iterable[CompileStage]
) -> tuple[CompileStage, ...]:
    """The differences to earlier states of these stages."""
    before = {stage.name: stage for stage in earlier}
    grown = (
        stage.since(before[stage.name]) if stage.name in before else stage
        for stage in stages
    )
    return tuple(stage for stage in grown if stage.calls > 0 and stage.ns > 0)
