"""Measures a step until the noise is known."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import Counter
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from torchprof_hooks.function_profiler import region
from torchprof_hooks.integrations.gate.baseline import STEP, Low, Run
from torchprof_hooks.integrations.gate.reference import Reference
from torchprof_hooks.profiler import profile
from torchprof_hooks.profiles.files.collector import without_collections
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.profile import Profile

#: Rows that a comparison is about: what the program does itself.
_KINDS: Final = ("module", "optimizer", "data", "communication")

_SECOND_NS: Final = 1_000_000_000
#: Before anything counts.
_WARM_UP_NS: Final = _SECOND_NS // 4
_WARM_UP_STEPS: Final = 3
#: Shorter steps are made several times in a round.
_LEAST_ROUND_NS: Final = 1_000_000
#: A block is so long, and has so many rounds at least.
_BLOCK_NS: Final = _SECOND_NS // 2
_LEAST_ROUNDS: Final = 8
#: There are so many blocks, and more until the shortest times of three agree.
_LEAST_BLOCKS: Final = 6
_AGREEING: Final = 3
_AGREEMENT: Final = 0.03

#: By row and phase, nanoseconds.
_Times = Counter[tuple[str, Phase]]


def measure(step: Callable[[], object], max_seconds: float) -> Rounds:
    """The shortest times of a step, and of the reference, which take turns.

    Whatever else a machine does makes a step slower, never faster. So the shortest of
    some hundred times is what the code takes, as soon as it comes up again and again.
    The parts of a step are looked at one by one: all of it is left alone less often
    than each of its parts.

    step: does the same in each call; it is called some hundred times.
    max_seconds: of this, at most, unless a few calls take longer.
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
    profile: of all of them.
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
        """Whatever is called for the first time is looked up, and named."""
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
        """By how much, as a share, the shortest times of the best three blocks differ:
        they are shortest times of that many blocks only if the machine was left alone
        in that many."""
        best = sorted(self._ratios)[:_AGREEING]
        return best[-1] / best[0] - 1 if best and best[0] else 0.0

    def add_block(self, until_ns: int) -> None:
        """Some rounds more, not after `until_ns` if there were enough."""
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
        """The shortest times."""
        infos = self.profile.modules
        rows: dict[str, Low] = {}
        for (name, phase), low_ns in sorted(self._lows.items()):
            low = rows.setdefault(name, Low(infos[name].class_name, {}))
            rows[name] = low._replace(
                phases={**low.phases, phase: low_ns // self._repeats}
            )
        return Run(self._low("Reference.0"), self._low("Reference.1"), rows)

    def _low(self, name: str) -> int:
        """Of a piece of the reference; 1 at least."""
        lows = self._reference_lows.items()
        return max(sum(low_ns for (row, _), low_ns in lows if row == name), 1)


def _lower(lows: _Times, others: _Times) -> None:
    """Keep the lower ones of each."""
    for key, time_ns in others.items():
        lows[key] = min(lows.get(key, time_ns), time_ns)


def _times(profile: Profile, before: Profile, top: str) -> _Times:
    """Own times of the rows below an outermost call, since an earlier profile. On a
    device where it has measured any, which are all if it has."""
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
    """How many steps are long enough for a round."""
    began_ns, steps, shortest_ns = perf_counter_ns(), 0, _LEAST_ROUND_NS
    while steps < _WARM_UP_STEPS or perf_counter_ns() - began_ns < _WARM_UP_NS:
        step_ns = perf_counter_ns()
        step()
        step_ns = perf_counter_ns() - step_ns
        shortest_ns = min(shortest_ns, max(step_ns, 1))
        steps += 1
    return -(-_LEAST_ROUND_NS // shortest_ns)


#: Parameters of glibc's ``mallopt``: up to how many free bytes at the end of its memory
#: it keeps for itself, and from how many bytes on it asks the system for each piece.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_PLENTY: Final = 1 << 30


def _keep_freed_memory() -> None:
    """Have the C library keep what tensors give back. If it returns that to the system,
    and whether it does is chance, the next tensor is mapped page by page, and a step
    takes twice as long. It stays so until the process ends: what the C library did
    before cannot be asked, and it adapts no more once it has been told."""
    is_linux = sys.platform == "linux"
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if is_linux else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _PLENTY)
        mallopt(_MMAP_THRESHOLD, _PLENTY)
