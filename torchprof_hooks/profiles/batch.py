"""The largest batch that fits into memory, from the peaks of other batch sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Final, NamedTuple, TypeAlias

from torchprof_hooks.profiles.cells import Infos, enclosing_module
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.memory import (
    MEMORY_KINDS,
    HeldMemory,
    MemoryKind,
    MemorySummary,
)
from torchprof_hooks.profiles.memory_step import MemoryPoint, MemoryStep
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase, without_numbers

#: Bytes by the batch size, as a polynomial: bytes without any batch, per sample, per
#: square of the batch, and so on.
_Curve: TypeAlias = tuple[float, ...]
#: A call with the layers of its kind, whatever the shapes of its inputs: names and
#: classes, outermost first; and its phase.
_Owner: TypeAlias = tuple[tuple[tuple[str, str], ...], Phase]

#: Memory of these kinds is the same for any batch.
_FIXED: Final[tuple[MemoryKind, ...]] = (
    *("gradient", "optimizer state", "parameter", "buffer"),
)
#: A call grows faster than the batch if its bytes are so many times those that are in
#: proportion; it is a part of the peak if what is not in proportion is such a share.
_FASTER: Final = 1.02
_LEAST_SHARE: Final = 0.01
#: A call that is not in the peak, but grows faster, prevents a prediction from
#: this share of the memory on.
_IN_THE_WAY: Final = 0.1
#: A power of the batch is a whole one, up to this.
_WHOLE: Final = 0.1
#: Smaller sizes that were measured may be so far above what is predicted of them.
_NEARLY: Final = 1.05


class FasterOwner(NamedTuple):
    """A module or function with memory that grows faster than the batch.

    power: of the batch, with which it grows: 2.0 for the square.
    bytes: what it has of the peak of the largest size that was measured.
    """

    name: str
    power: float
    bytes: int


@dataclass(frozen=True, slots=True)
class BatchFit:
    """How the peak of a step grows with the batch size.

    In each phase of a step, the most in use is taken to grow in proportion to the
    batch: so the peak is the highest of straight lines. (In small batches, it may be
    in the optimizer's step, and in larger ones in backward.) Where owners of the peak
    grow faster, that moment is instead the sum of all that is in use there, and each
    owner grows as its calls do; other moments may become the highest one.

    memory_bytes: what it is to fit into.
    measured: the peaks that were measured, by batch size: two or more.
    largest: the largest batch size that fits; 0: not even 1 does.
    at_most: larger than that, if it is not sure how the peak grows: the largest batch
        is then between both.
    faster: what grows faster than the batch, most first.
    """

    memory_bytes: int
    measured: Mapping[int, int]
    largest: int
    at_most: int
    faster: tuple[FasterOwner, ...]
    _curves: tuple[_Curve, ...]

    def peak_bytes(self, batch_size: int) -> int:
        """The predicted peak of a step; if it is not sure, the highest."""
        return _peak(self._curves, batch_size)

    @property
    def each_bytes(self) -> int:
        """What one more sample adds, in batches of the largest size."""
        size = max(self.largest, *self.measured)
        return self.peak_bytes(size + 1) - self.peak_bytes(size)


def largest_batch(profiles: Mapping[int, ProfileData], memory_bytes: int) -> BatchFit:
    """The largest batch size whose step fits into so many bytes.

    profiles: of the same program with two batch sizes or more, by these: each with
        ``memory=True`` and a few steps. The two largest tell how memory grows, smaller
        ones whether that is so.
    memory_bytes: in use by tensors: on a device, leave some room for what its allocator
        cannot use, and for libraries.

    Raises:
        ValueError: there are not two batch sizes, memory was not measured by owner or
            ran out, these are different programs, memory does not grow with the batch,
            or what grows faster than the batch is not in the peaks yet.
    """
    if len(profiles) < 2 or min(profiles) < 1 or memory_bytes < 1:
        raise ValueError(
            "give the profiles of two different batch sizes, both at least 1, and how "
            "many bytes there are"
        )
    sizes = sorted(profiles)
    if not all(_are_alike(profiles[a], profiles[b]) for a, b in pairwise(sizes)):
        raise ValueError(
            "these are profiles of different programs: few modules have the same name"
        )
    steps = {size: _step_of(profiles[size], size) for size in sizes}
    *_, small, large = sizes
    growth = _Growth(profiles[small], small, profiles[large], large)
    faster = growth.faster()
    lines = _lines(steps[small], small, steps[large], large)
    if faster:  # the lines of that moment would be too low
        lines = {p: line for p, line in lines.items() if p not in growth.of_peak}
    curves = (*lines.values(), *([growth.curve()] if faster else []))
    if max(max(curve[1:]) for curve in curves) <= 0:
        raise ValueError(
            f"memory does not grow with the batch: the peak of a step is "
            f"{steps[small].peak_bytes} bytes for {small}, and "
            f"{steps[large].peak_bytes} for {large}"
        )
    found = at_most = _largest(curves, memory_bytes)
    growth.check(at_most, memory_bytes)
    higher = (*curves, *_higher(steps, faster, curves))
    if (least := _largest(higher, memory_bytes)) < at_most / _NEARLY:
        found, curves = least, higher
    measured = {size: steps[size].peak_bytes for size in sizes}
    return BatchFit(memory_bytes, measured, found, at_most, faster, curves)


def _higher(
    steps: Mapping[int, MemoryStep],
    faster: Iterable[FasterOwner],
    curves: Iterable[_Curve],
) -> Iterator[_Curve]:
    """Where it is not sure how the peak grows: how it may grow at most."""
    *_, small, large = steps
    before, after = steps[small], steps[large]
    if faster:
        yield from _moments(before, small, after, large)
        is_sure = all(abs(each.power - round(each.power)) < _WHOLE for each in faster)
    else:
        peaks = ((step.peak_bytes, _peak(curves, size)) for size, step in steps.items())
        is_sure = all(peak <= _NEARLY * predicted for peak, predicted in peaks)
    if not is_sure:  # as if all that grows did so with the square
        base, slope = _through(small**2, before.peak_bytes, large**2, after.peak_bytes)
        yield base, 0.0, slope


def _are_alike(one: ProfileData, other: ProfileData) -> bool:
    # Names of functions have the shapes of their inputs.
    names, others = (
        {name for name, info in profile.modules.items() if info.kind == "module"}
        for profile in (one, other)
    )
    return 2 * len(names & others) > len(names | others)


def _step_of(profile: ProfileData, batch_size: int) -> MemoryStep:
    memory = profile.memory or MemorySummary()
    if memory.failure is not None:
        raise ValueError(
            f"the run with batch size {batch_size} ran out of memory, so that its peak "
            "is not known: give profiles of smaller sizes"
        )
    if memory.step is None:
        raise ValueError(
            f"the profile of batch size {batch_size} has no step whose memory was "
            "recorded: measure a few steps with profile(memory=True) and the native "
            "core"
        )
    return memory.step


def _lines(
    before: MemoryStep, small: int, after: MemoryStep, large: int
) -> dict[Phase | None, _Curve]:
    """Lines through the most in use in each phase, and (None) through the peaks."""
    ends: dict[Phase | None, tuple[int, int]] = {
        phase: (before.highest[phase], after.highest[phase])
        for phase in before.highest.keys() & after.highest
    }
    ends[None] = before.peak_bytes, after.peak_bytes
    return {phase: _through(small, a, large, b) for phase, (a, b) in ends.items()}


def _through(small: int, before: float, large: int, after: float) -> _Curve:
    """The line through two sizes."""
    slope = (after - before) / (large - small)
    return before - slope * small, slope


def _moments(
    before: MemoryStep, small: int, after: MemoryStep, large: int
) -> Iterator[_Curve]:
    """What is in use while each call runs, in any size: what is fixed, and the rest as
    it grows between the two sizes, if that is faster than the batch."""
    one, other = _highest_points(before), _highest_points(after)
    for call in one.keys() & other.keys():
        point = other[call]
        fixed = sum(
            size
            for kind, size in zip(MEMORY_KINDS, point.by_kind, strict=True)
            if kind in _FIXED
        )
        low = max(one[call].bytes - fixed, 0) / small
        base, slope = _through(small, low, large, (point.bytes - fixed) / large)
        if slope > 0:
            yield fixed, max(base, 0.0), slope


def _highest_points(step: MemoryStep) -> dict[tuple[str, Phase], MemoryPoint]:
    found: dict[tuple[str, Phase], MemoryPoint] = {}
    for point in step.points:
        call = point.owner
        if not call.startswith("("):  # whatever the shapes
            call = call.partition("(")[0]
        key = call, point.phase
        if key not in found or point.bytes > found[key].bytes:
            found[key] = point
    return found


def _value(curve: _Curve, batch_size: int) -> float:
    return sum(term * float(batch_size) ** power for power, term in enumerate(curve))


def _peak(curves: Iterable[_Curve], batch_size: int) -> int:
    return round(max(_value(curve, batch_size) for curve in curves))


def _largest(curves: Iterable[_Curve], memory_bytes: int) -> int:
    """The largest batch that fits; 0 if what does not grow is too much already."""
    rising = [curve for curve in curves if max(curve[1:]) > 0]
    fits, above = 0, 1
    while _peak(rising, above) <= memory_bytes:
        fits, above = above, 2 * above
    while above - fits > 1:
        middle = (fits + above) // 2
        if _peak(rising, middle) <= memory_bytes:
            fits = middle
        else:
            above = middle
    return fits if _peak(curves, fits) <= memory_bytes else 0


class _Growth:
    """How the memory that calls take grows from one batch size to a larger one."""

    def __init__(
        self, before: ProfileData, small: int, after: ProfileData, large: int
    ) -> None:
        self._sizes = small, large
        self._profile = after
        one, other = _bytes_a_call(before), _bytes_a_call(after)
        self._of_calls = {
            owner: (one[owner], other[owner])
            for owner in one.keys() & other.keys()
            if one[owner] and other[owner]
        }

    @property
    def of_peak(self) -> tuple[Phase | None, ...]:
        """The phase that has the peak of the larger size, and the peak itself."""
        return None, self._profile.memory.peak_phase if self._profile.memory else None

    def faster(self) -> tuple[FasterOwner, ...]:
        """What is in the peak and grows faster than the batch; () if that is little."""
        sizes, powers, more = Counter[str](), dict[str, float](), 0.0
        least = _LEAST_SHARE * sum(held.bytes for held in self._held())
        for held in self._held():
            owner = self._owner(held.path, held.phase)
            if held.kind not in _FIXED and self._is_faster(owner):
                name = self._name(held.path)
                sizes[name] += held.bytes
                power = self._power(owner)
                powers[name] = max(powers.get(name, 0.0), power)
                more += self._not_in_proportion(owner, self._sizes[1]) * held.bytes
        if more < least:
            return ()
        most = [each for each in sizes.most_common() if each[1] >= least]
        return tuple(FasterOwner(name, powers[name], n) for name, n in most)

    def curve(self) -> _Curve:
        """What is in use at the peak of the larger size, in any size."""
        total = Counter[int]()
        for held in self._held():
            curve = self._share(self._owner(held.path, held.phase), held.kind)
            total.update({p: term * held.bytes for p, term in enumerate(curve)})
        return tuple(total[power] for power in range(max(total, default=0) + 1))

    def check(self, batch_size: int, memory_bytes: int) -> None:
        """Raises ValueError if a call that has no part in the peak would be much of the
        memory in a batch of this size, and more than what does grow faster there."""
        large = self._sizes[1]
        inside = {self._owner(held.path, held.phase) for held in self._held()}
        at_peak = _value((0.0, 0.0, *self.curve()[2:]), batch_size)
        least = max(_IN_THE_WAY * memory_bytes, at_peak)
        for path, phase in self._profile.cells:
            owner = self._owner(path, phase)
            if batch_size <= large or owner in inside or not self._is_faster(owner):
                continue
            share = self._not_in_proportion(owner, batch_size)
            if share * self._of_calls[owner][1] >= least:
                raise ValueError(
                    f"the memory of {self._name(path)} grows faster than the batch, "
                    f"but it is not in the peak of batch size {large} yet: measure "
                    "larger sizes"
                )

    def _held(self) -> tuple[HeldMemory, ...]:
        return self._profile.memory.at_peak if self._profile.memory else ()

    def _owner(self, path: tuple[str, ...], phase: Phase) -> _Owner:
        return _owner(path, phase, self._profile.modules)

    def _name(self, path: tuple[str, ...]) -> str:
        return enclosing_module(path, self._profile.modules) or path[-1]

    def _is_faster(self, owner: _Owner) -> bool:
        small, large = self._sizes
        before, after = self._of_calls.get(owner, (1, 1))
        return after / before > _FASTER * large / small

    def _power(self, owner: _Owner) -> float:
        small, large = self._sizes
        before, after = self._of_calls[owner]
        return log(after / before) / log(large / small)

    def _share(self, owner: _Owner, kind: MemoryKind = "other") -> _Curve:
        """Memory of an owner in any size, as a share of what it is in the larger one:
        two powers of the batch next to each other, so that both sizes are as measured.
        """
        small, large = self._sizes
        if kind in _FIXED:
            return (1.0,)
        if owner not in self._of_calls:
            return 0.0, 1 / large
        power = max(int(self._power(owner) + 1e-9), 0)
        before, after = self._of_calls[owner]
        low, high = _through(
            small, before / after / small**power, large, 1 / large**power
        )
        return (1.0,) if high < 0 else (*(0.0,) * power, low, high)

    def _not_in_proportion(self, owner: _Owner, batch_size: int) -> float:
        """The part of `_share` of higher powers than 1."""
        return _value((0.0, 0.0, *self._share(owner)[2:]), batch_size)


def _owner(path: tuple[str, ...], phase: Phase, infos: Infos) -> _Owner:
    kinds = (infos.get(name, ModuleInfo(name)) for name in path)
    alike = (
        (without_numbers(name) * (info.kind != "function"), info.class_name)
        for name, info in zip(path, kinds, strict=True)
    )
    return tuple(alike), phase


def _bytes_a_call(profile: ProfileData) -> dict[_Owner, float]:
    """What calls of each owner take, without inner calls."""
    used, calls = Counter[_Owner](), Counter[_Owner]()
    for (path, phase), totals in profile.cells.items():
        owner = _owner(path, phase, profile.modules)
        used[owner] += totals.memory.used_bytes
        calls[owner] += totals.calls
    return {owner: size / max(calls[owner], 1) for owner, size in used.items()}
