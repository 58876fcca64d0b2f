"""Measures a step until its shortest times agree."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import Counter
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

import torch
from torch import nn

from torchprof_hooks.function_profiler import region
from torchprof_hooks.integrations.gate.baseline import STEP, Low, Run
from torchprof_hooks.profiler import profile
from torchprof_hooks.profiles.files.collector import without_collections
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.profile import Profile

#: Kinds of rows that are compared: what the program does itself.
_KINDS: Final = ("module", "optimizer", "data", "communication")

_SECOND_NS: Final = 1_000_000_000
#: How long the step is run at least before anything counts, and how often.
_WARM_UP_NS: Final = _SECOND_NS // 4
_WARM_UP_STEPS: Final = 3
#: A round is at least so long: shorter steps are repeated in it.
_LEAST_ROUND_NS: Final = 1_000_000
#: A block takes at least so long, and has at least so many rounds.
_BLOCK_NS: Final = _SECOND_NS // 2
_LEAST_ROUNDS: Final = 8
#: There are so many blocks, and then more, until so many agree within this share.
_LEAST_BLOCKS: Final = 6
_AGREEING: Final = 3
_AGREEMENT: Final = 0.03

#: Rows of the matrices, numbers of the vectors. A piece takes some tenths of a
#: millisecond: long enough to be measured, short enough to run undisturbed now and then
#: on a machine that does other things, too.
_ROWS, _NUMBERS = 192, 200_000

#: Nanoseconds by row and phase.
_Times = Counter[tuple[str, Phase]]


class Matrices(nn.Module):
    """Work for the arithmetic units."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.factor = torch.full((_ROWS, _ROWS), 1 / _ROWS, device=device)
        self.product = torch.empty_like(self.factor)

    def forward(self) -> None:
        for _ in range(2):
            torch.mm(self.factor, self.factor, out=self.product)


class Vectors(nn.Module):
    """Work for the memory."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.numbers = torch.ones(_NUMBERS, device=device)
        self.sums = torch.empty_like(self.numbers)

    def forward(self) -> None:
        for _ in range(2):
            torch.add(self.numbers, 1.0, out=self.sums)


class Reference(nn.Sequential):
    """Both kinds of work, each measured by itself: they are modules, so a profiler
    measures them like the modules of the step, on a device with its clock.

    device: where the work is done.
    """

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(Matrices(device), Vectors(device))

    def forward(self) -> None:  # type: ignore[override]
        with torch.no_grad():
            for piece in self:
                piece()


def measure(step: Callable[[], object], max_seconds: float) -> Rounds:
    """The shortest times of a step, and of the reference, which take turns.

    Whatever else a machine does makes a step slower, never faster. So the shortest of
    some hundred times is what the code takes, if it is reached again and again. Each
    part of a step has a shortest time of its own: a part runs undisturbed more often
    than the whole step does.

    step: does the same in each call; it is called some hundred times.
    max_seconds: how long to measure at most, unless a few calls take longer.
    """
    _keep_freed_memory()
    with without_collections():
        repeats = _warm_up(step)
        rounds = Rounds(step, repeats)
        until_ns = perf_counter_ns() + round(max_seconds * _SECOND_NS)
        while rounds.blocks < _LEAST_BLOCKS or rounds.disagreement() > _AGREEMENT:
            if rounds.blocks and perf_counter_ns() >= until_ns:
                break
            rounds.add_block(until_ns)
    return rounds


class Rounds:
    """Rounds of the reference and a step, in blocks.

    repeats: how many steps are in a round.
    profile: the profile of all rounds.
    """

    def __init__(self, step: Callable[[], object], repeats: int) -> None:
        self._step = step
        self._repeats = repeats
        self._profiler = profile()
        self._region = region(STEP)
        self._reference = Reference()
        self._lows: _Times = Counter()
        self._reference_lows: _Times = Counter()
        self._ratios: list[float] = []  # of the blocks
        self.profile = Profile()
        self._begin()

    def _begin(self) -> None:
        """Run rounds that do not count: they look names up, and show the device."""
        with self._profiler:
            self._round()
        devices = self._profiler.profile.devices
        if devices:
            self._reference = Reference(devices[0])
            with self._profiler:
                self._round()
        self.profile = self._profiler.profile

    @property
    def blocks(self) -> int:
        return len(self._ratios)

    def disagreement(self) -> float:
        """By how much, as a share, the best three blocks differ, each by its shortest
        times in relation to those of the reference. If they agree, it is likely that
        all three ran undisturbed."""
        best = sorted(self._ratios)[:_AGREEING]
        return best[-1] / best[0] - 1 if best and best[0] else 0.0

    def add_block(self, until_ns: int) -> None:
        """Run another block of rounds; after `until_ns`, none begins but the first."""
        began_ns, rounds = perf_counter_ns(), 0
        steps: _Times = Counter()
        references: _Times = Counter()
        gc.collect()
        with self._profiler:
            while rounds < _LEAST_ROUNDS or perf_counter_ns() - began_ns < _BLOCK_NS:
                if rounds and perf_counter_ns() >= until_ns:
                    break
                self._round()
                before, self.profile = self.profile, self._profiler.profile
                _lower(steps, _times(self.profile, before, STEP))
                _lower(references, _times(self.profile, before, "Reference"))
                rounds += 1
        _lower(self._lows, steps)
        _lower(self._reference_lows, references)
        self._ratios.append(steps.total() / max(references.total(), 1))

    def _round(self) -> None:
        self._reference()
        with self._region:
            for _ in range(self._repeats):
                self._step()

    def run(self) -> Run:
        """The shortest times of all blocks, those of rows for one step."""
        infos = self.profile.modules
        rows: dict[str, Low] = {}
        for (name, phase), low_ns in sorted(self._lows.items()):
            low = rows.setdefault(name, Low(infos[name].class_name, {}))
            rows[name] = low._replace(
                phases={**low.phases, phase: low_ns // self._repeats}
            )
        return Run(self._low("Reference.0"), self._low("Reference.1"), rows)

    def _low(self, name: str) -> int:
        """Shortest time of a piece of the reference, in nanoseconds; 1 at least."""
        lows = self._reference_lows.items()
        return max(sum(low_ns for (row, _), low_ns in lows if row == name), 1)


def _lower(lows: _Times, others: _Times) -> None:
    """Keep in `lows` the lower time of both for each key."""
    for key, time_ns in others.items():
        lows[key] = min(lows.get(key, time_ns), time_ns)


def _times(profile: Profile, before: Profile, top: str) -> _Times:
    """Own times of the rows below the outermost call `top`, since the profile `before`:
    those of the device if any were measured there, else the host's."""
    times: _Times = Counter()
    for key, totals in profile.cells.items():
        path, phase = key
        if path[0] != top or profile.modules[path[-1]].kind not in _KINDS:
            continue
        old = before.cells.get(key)
        if profile.devices:
            spent_ns = totals.device_self_ns - (old.device_self_ns if old else 0)
        else:
            spent_ns = totals.self_ns - (old.self_ns if old else 0)
        times[path[-1], phase] += max(spent_ns, 0)
    return times


def _warm_up(step: Callable[[], object]) -> int:
    """Warm up, and return how many steps are long enough for a round."""
    began_ns, steps, shortest_ns = perf_counter_ns(), 0, _LEAST_ROUND_NS
    while steps < _WARM_UP_STEPS or perf_counter_ns() - began_ns < _WARM_UP_NS:
        step_ns = perf_counter_ns()
        step()
        step_ns = perf_counter_ns() - step_ns
        shortest_ns = min(shortest_ns, max(step_ns, 1))
        steps += 1
    return -(-_LEAST_ROUND_NS // shortest_ns)


#: Parameters of glibc's ``mallopt``: how many free bytes it keeps at the top of the
#: heap, and from how many bytes on it maps each block by itself.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_PLENTY: Final = 1 << 30


def _keep_freed_memory() -> None:
    """Have the C library keep memory that tensors free. Whether it returns memory to
    the system is chance; if it does, the next tensor is mapped page by page, and a step
    takes twice as long. This cannot be undone while the process lives: glibc does not
    tell its settings, and no longer adapts them once they were set."""
    is_linux = sys.platform == "linux"
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if is_linux else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _PLENTY)
        mallopt(_MMAP_THRESHOLD, _PLENTY)
