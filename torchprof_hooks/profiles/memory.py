"""Memory, in bytes: how much calls took, the peak of a run, the course of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Final, Literal, get_args

from torchprof_hooks.profiles.amounts import Amounts, Signed, longest, summed
from torchprof_hooks.profiles.names import Phase, united

#: What a block of memory is, in the order of `Kind` in native/meters/ledger.h:
#: "temporary" was freed before anything was known of it, "activation" is what forward
#: keeps for backward.
MemoryKind = Literal[
    "temporary",
    "activation",
    "gradient",
    "optimizer state",
    "parameter",
    "buffer",
    "other",
]
MEMORY_KINDS: Final[tuple[MemoryKind, ...]] = get_args(MemoryKind)


@dataclass(frozen=True, slots=True)
class MemoryTotals(Amounts):
    """The memory of calls of one kind, in bytes.

    used_bytes: bytes that the allocator handed out during the calls; freed bytes count,
        too.
    acquired_bytes: bytes that the allocator took from the device, or from the system.
    retained_bytes: bytes in use when the calls returned, less those in use when they
        began: what forward leaves behind, mostly for backward. Other phases free memory
        that they did not allocate, so there it means little.
    peak_bytes: how far the memory in use rose above its level at the begin of a call,
        with inner calls: the most of all calls.
    """

    used_bytes: int = summed()
    acquired_bytes: Signed = summed()
    retained_bytes: Signed = summed()
    peak_bytes: int = longest()

    def __add__(self, other: MemoryTotals) -> MemoryTotals:
        # Mostly, memory was not measured.
        if other is NO_MEMORY:
            return self
        if self is NO_MEMORY:
            return other
        return Amounts.__add__(self, other)

    def __sub__(self, other: MemoryTotals) -> MemoryTotals:
        return self if other == NO_MEMORY else Amounts.__sub__(self, other)

    def with_peak(self, peak_bytes: int) -> MemoryTotals:
        """These bytes with another peak."""
        if peak_bytes == self.peak_bytes:
            return self
        used, acquired = self.used_bytes, self.acquired_bytes
        return MemoryTotals(used, acquired, self.retained_bytes, peak_bytes)


NO_MEMORY: Final = MemoryTotals()


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """Memory in use of one owner and kind.

    path: of the owner, outermost first: of the call that took the memory; of
        parameters, buffers and states of optimizers, of the module or optimizer that
        has them.
    phase: of that call; "outside" for parameters and buffers.
    kind: what it is, not when it was made.
    """

    path: tuple[str, ...]
    phase: Phase
    kind: MemoryKind
    bytes: int

    @property
    def owner(self) -> str:
        """The name of the module, function or optimizer."""
        return self.path[-1]


def bytes_by_kind(every: Iterable[HeldMemory]) -> dict[MemoryKind, int]:
    """The bytes of each kind, most first."""
    found: Counter[MemoryKind] = Counter()
    for held in every:
        found[held.kind] += held.bytes
    return dict(found.most_common())


@dataclass(frozen=True, slots=True)
class GrowingMemory(HeldMemory):
    """Memory of one owner and kind that grows from training step to training step.

    path, phase: of the module, or of what is no module: functions that a module calls
        count for it.
    bytes: what was in use at the end of the last step that was read.
    bytes_per_step: how much more that is with each step, in the mean; of the steps in
        which memory was measured.
    since_step: the number of the first step, from 1, at whose end there was more than
        ever before. Of a long run, one of many steps is read.
    """

    bytes_per_step: int
    since_step: int


def growing_most(every: Iterable[GrowingMemory]) -> tuple[GrowingMemory, ...]:
    """What grows most first; once for each owner and kind."""
    found: dict[tuple[object, ...], GrowingMemory] = {}
    for one in sorted(every, key=lambda one: (-one.bytes_per_step, astuple(one))):
        found.setdefault((one.path, one.phase, one.kind), one)
    return (*found.values(),)


@dataclass(frozen=True, slots=True)
class MemoryFailure:
    """The last time that there was no memory for a tensor.

    requested_bytes: what was asked for.
    path, phase: of the call that asked.
    held: who had what at that moment, most first.
    steps_after: how many whole training steps came after it: the program caught the
        exception, and went on.
    """

    requested_bytes: int
    path: tuple[str, ...]
    phase: Phase
    held: tuple[HeldMemory, ...] = ()
    steps_after: int = 0

    @property
    def held_bytes(self) -> int:
        """What was in use."""
        return sum(held.bytes for held in self.held)

    @property
    def times(self) -> float:
        """How many times all that was in use was asked for."""
        return self.requested_bytes / max(self.held_bytes, 1)


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
    calls: how many calls of them would run again in what was recorded, which may be
        one of several batches of a step.
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


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """Memory over a whole run.

    source: whose memory it is: "cuda:0", "cpu"; of merged runs, "cuda:0, cuda:1".
    peak_bytes: the highest level in use. On the CPU, with the models and optimizers
        that were there before; on a device, all that its allocator has handed out, to
        any thread, also before.
    peak_path, peak_phase: the call that set it.
    unavailable: why memory could not be measured. The rest is empty then, unless runs
        were merged of which only some were measured.
    at_peak: who had what when most was in use, most first; the bytes add up to
        `peak_bytes`. Empty where only counters of an allocator can be read.
    step_peaks: the most that was in use in each of the last steps, oldest first.
    growing: what grows from step to step, most first.
    failure: when there was no memory; None if there always was.
    step: the memory of one step in detail; None until one has ended.
    """

    source: str = ""
    peak_bytes: int = 0
    peak_path: tuple[str, ...] = ()
    peak_phase: Phase = "outside"
    unavailable: str = ""
    at_peak: tuple[HeldMemory, ...] = ()
    step_peaks: tuple[int, ...] = ()
    growing: tuple[GrowingMemory, ...] = ()
    failure: MemoryFailure | None = None
    step: MemoryStep | None = None

    def bytes_by_kind(self) -> dict[MemoryKind, int]:
        """The bytes at the peak by their kind, most first."""
        return bytes_by_kind(self.at_peak)

    def merge(self, other: MemorySummary) -> MemorySummary:
        """Both runs as one, whatever their order: the higher peak with its call."""
        higher = max(
            (self, other),
            key=lambda run: (
                *(run.peak_bytes, run.peak_path, run.peak_phase),
                [astuple(held) for held in run.at_peak],
            ),
        )
        failures = [run.failure for run in (higher, self, other) if run.failure]
        return MemorySummary(
            source=united(self.source, other.source, ", "),
            peak_bytes=higher.peak_bytes,
            peak_path=higher.peak_path,
            peak_phase=higher.peak_phase,
            unavailable=united(self.unavailable, other.unavailable, "; "),
            at_peak=higher.at_peak,
            step_peaks=higher.step_peaks,
            growing=growing_most([*self.growing, *other.growing]),
            # One that a program did not outlive before one that it did.
            failure=min(failures, key=lambda one: one.steps_after, default=None),
            step=higher.step or self.step or other.step,
        )


def merge_summaries(
    left: MemorySummary | None, right: MemorySummary | None
) -> MemorySummary | None:
    """Both as one, or the one that is not None."""
    if left is None or right is None:
        return left or right
    return left.merge(right)
