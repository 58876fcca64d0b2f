"""Memory whose counters are known to the byte, and steps that take some of it."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from torch import nn

from tests.functions import ONE, Runs, x
from tests.helpers import occurrences
from torchprof_hooks import function_hooks, link_hooks
from torchprof_hooks.hooks import tables
from torchprof_hooks.instruments.memory.meter import MemoryMeter
from torchprof_hooks.measure.memory_counter import Reading

MIB = 2**20
INPUT = x()


def near(size: int) -> Any:
    return pytest.approx(size, abs=16 * mmap.PAGESIZE)


class FakeMemory:
    """An allocator that counts what it hands out, as that of CUDA does."""

    kind, index, name = "hpu", 0, "hpu:0"  # torch knows it, and no build has it

    def __init__(self) -> None:
        self.used = self.acquired = self.current = self.peak = 0

    def check_index(self) -> None: ...

    def take(self, size: int, acquired: int = 0) -> None:
        self.used += size
        self.current += size
        self.acquired += acquired
        self.peak = max(self.peak, self.current)

    def free(self, size: int) -> None:
        self.current -= size

    def read(self) -> Reading:
        return self.used, self.acquired, self.current, self.peak


@contextmanager
def fake_memory() -> Iterator[FakeMemory]:
    """What hooks that are made inside measure."""
    fake = FakeMemory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            *(tables, "memory_meter"),
            lambda device=None: MemoryMeter(fake),  # type: ignore[arg-type]
        )
        yield fake


class Taken(NamedTuple):
    """A kind of memory hook, and a step that takes the bytes of `history`: (name, used,
    acquired, depth) of each call. It does what it is given as well, after all calls in
    its forward."""

    hook: Callable[..., Any]
    step: Callable[..., None]
    target: Any
    history: list[tuple[str, int, int, int]]
    local: list[tuple[str, int, int, int]]  # with the hook on the target alone
    total: tuple[int, int]  # used and acquired
    #: By name: used, acquired, peak; the first two without inner calls.
    sums: dict[str, tuple[int, int, int]]
    own: dict[str, tuple[int, int]]
    ended: int = 2  # calls, where the step does what it is given

    @property
    def fields(self) -> dict[str, type]:
        """Of each row of the sums: numbers of Python's, not of numpy's."""
        kept = ["retained_bytes"] if self.total == (139, 1000) else []
        names = ["used_bytes", "acquired_bytes", "peak_bytes", *kept, "occurrence"]
        return dict.fromkeys(names, int)

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in self.history]

    def check_sums(self, hook: Any, steps: int) -> None:
        assert occurrences(hook) == Counter(self.names * steps)
        for name, (used, acquired, _) in self.sums.items():
            sums = hook.summary()[name]
            assert (sums["used_bytes"], sums["acquired_bytes"]) == (
                steps * used,
                steps * acquired,
            )
        # Outermost calls only: every byte counts once.
        used, acquired = self.total
        assert hook.total_used_bytes() == steps * used
        assert hook.total_acquired_bytes() == steps * acquired


class Takes(nn.Module):
    """Does something in forward, and something in backward."""

    def __init__(
        self, now: Callable[[], object] = int, later: Callable[[], object] = int
    ) -> None:
        super().__init__()
        self.now, self.later = now, later

    def forward(self, x: Any) -> Any:
        return Runs.apply(x, self.now, self.later)


class Net(nn.Module):
    """Takes 2 for itself. Its a takes 100 and frees 60 at once, and in backward 7; its
    b takes 30, which its backward frees."""

    def __init__(self, memory: FakeMemory) -> None:
        super().__init__()
        self.memory = memory
        self.a = Takes(self.burst, lambda: memory.take(7))
        self.b = Takes(lambda: memory.take(30), lambda: memory.free(30))

    def burst(self) -> None:
        self.memory.take(100, acquired=1000)
        self.memory.free(60)

    def forward(self, x: Any, more: Callable[[], object] = int) -> Any:
        self.memory.take(2)
        result = self.b(self.a(x))
        more()
        return result


def of_modules(memory: FakeMemory) -> Taken:
    net = Net(memory)

    def step(more: Callable[[], object] = int) -> None:
        net(INPUT, more).sum().backward(ONE)

    def hook(*args: Any, **options: Any) -> link_hooks.MemoryProfileHook:
        return link_hooks.MemoryProfileHook(*args, by="module", **options)

    return Taken(
        *(hook, step, net.a),
        history=[
            ("Net.a", 100, 1000, 1),
            ("Net.b", 30, 0, 1),
            ("Net", 132, 1000, 0),
            ("Net.b", 0, 0, 1),
            ("Net.a", 7, 0, 1),
            ("Net", 7, 0, 0),
        ],
        local=[("Takes", 100, 1000, 0), ("Takes", 7, 0, 0)],
        total=(132 + 7, 1000),
        sums={"Net.a": (107, 1000, 100), "Net.b": (30, 0, 30), "Net": (139, 1000, 102)},
        own={"Net.a": (107, 1000), "Net.b": (30, 0), "Net": (2, 0)},
    )


class Inner(Runs):
    """The same under another name."""


def of_functions(memory: FakeMemory) -> Taken:
    """Runs takes 5, then Inner 100 of which 60 are freed, then 3; in backward 11."""

    def inner() -> None:
        memory.take(100, acquired=2000)
        memory.free(60)

    def step(more: Callable[[], object] = int) -> None:
        def outer() -> None:
            memory.take(5)
            Inner.apply(INPUT, inner)
            memory.take(3)
            more()

        later = lambda: memory.take(11, acquired=20)  # noqa: E731
        Runs.apply(INPUT, outer, later).sum().backward(ONE)

    return Taken(
        *(function_hooks.MemoryProfileHook, step, Inner),
        history=[
            ("clone", 0, 0, 2),
            ("Inner", 100, 2000, 1),
            ("clone", 0, 0, 1),
            ("Runs", 108, 2000, 0),
            ("sum", 0, 0, 0),
            ("sum", 0, 0, 0),
            ("Runs", 11, 20, 0),
        ],
        local=[("Inner", 100, 2000, 0)],
        total=(108 + 11, 2000 + 20),
        # In Runs, 5 and the 100 of Inner at their highest, of which 60 are then freed.
        sums={
            "clone": (0, 0, 0),
            "Inner": (100, 2000, 100),
            "Runs": (119, 2020, 105),
            "sum": (0, 0, 0),
        },
        own={"clone": (0, 0), "Inner": (100, 2000), "Runs": (19, 20), "sum": (0, 0)},
    )


MEMORY_HOOKS: dict[str, Callable[[FakeMemory], Taken]] = {
    "modules": of_modules,
    "functions": of_functions,
}
