"""The memory of one step: how it rose and fell, and what checkpointing would save."""

from __future__ import annotations

from dataclasses import dataclass

from torchprof_hooks.profiles.amounts import Signed
from torchprof_hooks.profiles.names import Phase


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """Memory in use at one moment of a step.

    since_ns: since the step began.
    owner, phase: the call that ran: a module, an optimizer, or a function with the
        module that called it, ``Net.head: linear(8x4, 4x4)``.
    by_kind: bytes of each kind, in the order of `MEMORY_KINDS`.
    """

    since_ns: int
    owner: str
    phase: Phase
    by_kind: tuple[Signed, ...]

    @property
    def bytes(self) -> int:
        """All that was in use."""
        return sum(self.by_kind)


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """What would be if calls of these modules were checkpointed, each by itself: what
    forward keeps for backward were computed again when backward needs it.

    modules: their names; more than one are layers of a kind.
    peak_bytes: the most that the step would then have in use.
    calls: how many calls of them would run again in a step.
    """

    modules: tuple[str, ...]
    peak_bytes: int
    calls: int


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """A step whose memory was recorded block by block: one with a high peak.

    peak_bytes: the most that it had in use.
    points: its course, in some hundred moments; the peak is one of them.
    checkpointing: what would lower the peak, the lowest first.
    """

    peak_bytes: int
    points: tuple[MemoryPoint, ...] = ()
    checkpointing: tuple[Checkpointing, ...] = ()
