"""Programs that take and free blocks of memory in each step, in random sizes: such as
leak, and such as do not, whatever they look like for a while."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

from torchprof_hooks import Profiler, profile
from torchprof_hooks.instruments.memory.meter import MemoryMeter, meters_of
from torchprof_hooks.instruments.memory.steps import Growth, Holder
from torchprof_hooks.kernel.torch_names.tensors import storages_of
from torchprof_hooks.profiles.memory import MEMORY_KINDS, GrowingMemory

#: The new blocks of each step. It is told how many steps there will be.
Situation = Callable[[random.Random, int], Iterator[list[torch.Tensor]]]
#: Activations, as `Kind` in native/meters/ledger.h.
_KIND: Final = 1


def ledger_of(prof: Profiler) -> Any:
    """The core's meter of a profile of this thread that is on."""
    [measurer] = prof._threads.rounds
    [meter] = meters_of(measurer._steps.tracker, MemoryMeter)
    return meter.log


def simulated(
    choose: random.Random, steps: int, situations: Sequence[tuple[str, Situation]]
) -> list[GrowingMemory]:
    """What grows after so many steps. situations: each with the name of the owner of
    its blocks."""
    growth, owners = Growth(), sorted({owner for owner, _ in situations})
    codes = {owner: -1 - place for place, owner in enumerate(owners)}
    with profile(memory="cpu") as prof:
        ledger = ledger_of(prof)
        running = [(codes[owner], make(choose, steps)) for owner, make in situations]

        def read() -> Counter[Holder]:
            return Counter(
                {
                    ((owners[-1 - code],), "outside", MEMORY_KINDS[kind]): size
                    for code, kind, size in ledger.holdings(False)
                    if code < 0
                }
            )

        for step in range(1, steps + 1):
            ledger.turned_out(
                [
                    (storage, _KIND, code, True, block)
                    for code, blocks in running
                    for block in next(blocks)
                    for storage in storages_of(block)
                ]
            )
            growth.step_ended(step, read)
        return [*growth.growing()]


def block(choose: random.Random) -> torch.Tensor:
    """2 to 16 KB."""
    return torch.empty(choose.randint(512, 4096))


# Without a leak


def _states(choose: random.Random, steps: int) -> Iterator[list[torch.Tensor]]:
    """Those of optimizers: one from the first step on, one from a later one on."""
    later = choose.randint(2, steps)
    kept: list[torch.Tensor] = []
    for step in range(1, steps + 1):
        new = [block(choose) for _ in range(2 * (step in (1, later)))]
        kept += new
        yield new


def _varying(choose: random.Random, steps: int) -> Iterator[list[torch.Tensor]]:
    """The batch of a step, of any length, and what became of it."""
    for _ in range(steps):
        batch = [block(choose), block(choose)]
        yield batch


def _coming_back(choose: random.Random, steps: int) -> Iterator[list[torch.Tensor]]:
    """The same batches in each epoch, in the same order."""
    lengths = [
        choose.randint(512, 4096) for _ in range(choose.randint(2, max(steps // 3, 2)))
    ]
    for step in range(steps):
        batch = [torch.empty(lengths[step % len(lengths)])]
        yield batch


def _cache(choose: random.Random, steps: int) -> Iterator[list[torch.Tensor]]:
    """It fills in each step, or in some, and stops a twelfth of the run before its
    end at the latest."""
    stops = choose.randint(1, steps * 11 // 12)
    share = choose.choice([1, 1, 0.9, 0.5])
    kept: list[torch.Tensor] = []
    for step in range(1, steps + 1):
        new = [block(choose)] if step <= stops and choose.random() < share else []
        kept += new
        yield new


def _cache_of_keys(choose: random.Random, steps: int) -> Iterator[list[torch.Tensor]]:
    """One block for each of the keys that turn up; nearly all do in time."""
    keys = choose.randint(2, max(steps // 8, 2))
    kept: dict[int, torch.Tensor] = {}
    for _ in range(steps):
        key = choose.randrange(keys)
        new = [] if key in kept else [block(choose)]
        kept.update((key, one) for one in new)
        yield new


def _last_ones(choose: random.Random, steps: int) -> Iterator[list[torch.Tensor]]:
    """The last so many outputs, of any length."""
    kept = deque[torch.Tensor](maxlen=choose.randint(1, steps // 2))
    for _ in range(steps):
        kept.append(block(choose))
        yield [kept[-1]]


def _cleared(choose: random.Random, steps: int) -> Iterator[list[torch.Tensor]]:
    """Outputs are collected, and dropped at ends of epochs, or of games."""
    longest = choose.randint(2, max(steps // 3, 2))
    kept: list[torch.Tensor] = []
    left = 0
    for _ in range(steps):
        if not left:
            kept.clear()
            left = choose.randint((longest + 1) // 2, longest)
        left -= 1
        kept.append(block(choose))
        yield [kept[-1]]


def _pool(choose: random.Random, steps: int) -> Iterator[list[torch.Tensor]]:
    """A random walk with bounds: one comes, or one goes."""
    most = choose.randint(2, 40)
    kept: list[torch.Tensor] = []
    for _ in range(steps):
        new = []
        if choose.random() < 0.5:
            new = [block(choose) for _ in range(len(kept) < most)]
            kept += new
        elif kept:
            kept.pop(choose.randrange(len(kept)))
        yield new


def _evaluations(choose: random.Random, steps: int) -> Iterator[list[torch.Tensor]]:
    """Every so often, whose results are there until the next one."""
    every, kept = choose.randint(2, 20), list[torch.Tensor]()
    for step in range(1, steps + 1):
        new = []
        if step % every == 0:
            kept = new = [block(choose) for _ in range(choose.randint(1, 5))]
        yield new
    del kept


def _losses(choose: random.Random, steps: int) -> Iterator[list[torch.Tensor]]:
    """A number is kept of each step."""
    kept = []
    for _ in range(steps):
        kept.append(torch.empty(1))
        yield [kept[-1]]


WITHOUT_LEAK: Final[Sequence[Situation]] = (
    *(_states, _varying, _coming_back, _cache, _cache_of_keys, _last_ones, _cleared),
    *(_pool, _evaluations, _losses),
)


# With one


def leak(since: int, share: float = 1, every: int = 1, numbers: int = 0) -> Situation:
    """Something is kept from this step on: in this share of steps, or in one of so
    many. numbers: of how many numbers; 0: 2 to 16 KB."""

    def leaking(choose: random.Random, steps: int) -> Iterator[list[torch.Tensor]]:
        kept: list[torch.Tensor] = []
        for step in range(1, steps + 1):
            leaks = step >= since and (step - since) % every == 0
            new = []
            if leaks and choose.random() < share:
                new = [torch.empty(numbers) if numbers else block(choose)]
            kept += new
            yield new

    return leaking
