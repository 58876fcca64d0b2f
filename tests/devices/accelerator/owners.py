"""Who holds the memory of the planted device, in a process of its own: prints, as JSON,
what each scenario has found::

    python -m tests.devices.accelerator.owners EXTENSION
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.attribution.test_memory_owners import (
    Checkpointed,
    Counted,
    Net,
    cells,
    expected,
)
from tests.devices.accelerator.device import load
from tests.devices.report_calls import are_redirected, mappings, report_calls
from tests.helpers import memory_meter_of
from torchprof_hooks import MemorySummary, Profile, profile
from torchprof_hooks.kernel.torch_names.tensors import storages_of

PLANTED = "planted"
ROWS = 100


def in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def blocks_of(size: int) -> int:
    """The bytes that the allocator hands out for so many."""
    return -(-size // 512) * 512


def take(size: int, index: int = 0) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=f"{PLANTED}:{index}")


def level() -> int:
    return torch.accelerator.memory_allocated(0)


def log_of(prof: Any) -> Any:
    [measurer] = prof._threads.rounds
    meter = memory_meter_of(measurer._steps.tracker)
    return meter.log


def summary(found: Profile) -> MemorySummary:
    memory = found.memory
    assert memory is not None
    assert sum(held.bytes for held in memory.at_peak) == memory.peak_bytes
    assert all(held.bytes > 0 for held in memory.at_peak)
    assert not found.not_measured
    return memory


def measured(run: Callable[[], Any], **options: Any) -> dict[str, Any]:
    """The peak of a run, that of the allocator in it, and by kind, who had what."""
    torch.accelerator.reset_peak_memory_stats(0)
    with profile(memory="planted:0", **options) as prof:
        run()
    memory = summary(prof.profile)
    held: dict[str, dict[str, int]] = {}
    for one in memory.at_peak:
        held.setdefault(one.kind, {})[f"{one.owner}, {one.phase}"] = one.bytes
    return {
        "peak": memory.peak_bytes,
        "allocator's": torch.accelerator.max_memory_allocated(0),
        "held": held,
    }


def first_use(device: Any) -> Any:
    """The device comes into use inside of the block."""
    net, x = Net(), torch.ones(ROWS, 64)
    with profile(memory=PLANTED) as prof:
        net(x)
        was_initialized = device.is_initialized()
        with_it = Net().to(PLANTED)
        with_it(x.to(PLANTED)).sum().backward()
    memory = summary(prof.profile)
    return [
        was_initialized,
        memory.source,
        memory.peak_bytes == torch.accelerator.max_memory_allocated(0),
        memory.bytes_by_kind(),
    ]


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "Adam": torch.optim.Adam,
}


def trained(device: Any) -> Any:
    """A model that was there before, or that is made in the block; and its optimizer,
    which may have made a step before."""
    found = {}
    for name, make in OPTIMIZERS.items():
        for before in ("nothing", "model", "step"):
            found[f"{name}, {before}"] = measured(training(make, before))
    return found


def training(make: Callable[..., Any], before: str) -> Callable[[], None]:
    def start() -> Callable[[], None]:
        net, x = Net().to(PLANTED), torch.ones(ROWS, 64, device=PLANTED)
        optimizer = make(net.parameters())

        def step() -> None:
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()

        return step

    step = None if before == "nothing" else start()
    if before == "step":
        assert step is not None
        step()

    def run() -> None:
        steps = step or start()
        for _ in range(3):
            steps()
        take(10**6)  # the peak

    return run


def activations(device: Any) -> Any:
    net, x = Net().to(PLANTED), torch.ones(ROWS, 64, device=PLANTED)

    def step() -> None:
        out = net(x).sum()
        take(10**6)  # the peak
        out.backward()

    return [measured(step, functions=functions) for functions in (False, True)]


def one_pass(net: nn.Module, x: torch.Tensor) -> None:
    net(x).sum().backward()


def checkpoints(device: Any) -> Any:
    """Modules are called again in the engine's thread for the device, and in the
    reentrant kind, a pass runs inside of another one."""
    found = []
    for reentrant in (False, True):
        net = Checkpointed(reentrant, preserve_rng_state=False).to(PLANTED)
        x = torch.ones(4000, 64, device=PLANTED, requires_grad=True)
        found.append(measured(partial(one_pass, net, x)))
    return found


def crowd(device: Any) -> Any:
    """Threads that train, each measured by a profile of its own, and one that reads
    these meanwhile."""
    profilers: list[Any] = []

    def train() -> None:
        net, x = Net().to(PLANTED), torch.ones(ROWS, 64, device=PLANTED)
        for _ in range(5):
            with profile(memory=PLANTED) as prof:
                profilers.append(prof)
                for _ in range(10):
                    net(x).sum().backward()

    every = [threading.Thread(target=train) for _ in range(3)]
    for one in every:
        one.start()
    reads = 0
    while any(one.is_alive() for one in every):
        reads += sum(prof.profile.memory is not None for prof in profilers[-3:])
        time.sleep(0.002)  # else they hardly ever get the interpreter
    memories = [summary(prof.profile) for prof in profilers]
    return [reads > 0, [memory.bytes_by_kind()["parameter"] for memory in memories]]


def random_blocks(device: Any) -> Any:
    """Against brute force: some are freed by another thread, some were there before."""
    choose, wrong = random.Random(1), 0
    unknown = take(5000)
    before = [(-n, take(choose.randint(1, 9) * 512)) for n in range(1, 6)]
    begin = level()
    with profile(memory="planted:0") as prof:
        log, counted = log_of(prof), Counted()
        counted.there_before(
            0, 6, begin
        )  # "other", of which some turns out to be known
        tensors: dict[int, torch.Tensor] = {}
        for number in range(1, 1200):
            what = choose.random()
            if what < 0.45 or not tensors:
                size = choose.randint(1, 5000)
                tensors[number] = take(size)
                counted.take(number, blocks_of(size))
            elif what < 0.85:
                gone = choose.choice([*tensors])
                if choose.random() < 0.1:
                    in_thread(partial(tensors.pop, gone))
                else:
                    del tensors[gone]
                counted.give(gone)
            elif what < 0.99 or not before:
                one, kind = choose.choice([*tensors]), choose.randrange(7)
                log.turned_out([(storages_of(tensors[one])[0], kind, 0, False, None)])
                counted.turn_out(one, kind)
            else:
                one, tensor = before.pop()
                log.turned_out([(storages_of(tensor)[0], 4, -1, True, None)])
                size = tensor.nbytes
                for known in (counted.blocks, counted.at_peak):
                    known[0] = 6, known[0][1] - size
                    known[one] = 4, size
                tensors[one] = tensor
                del tensor
            wrong += not log.level_bytes == counted.level == level()
        wrong += log.peak_bytes != counted.peak
        wrong += cells(log.holdings(False)) != expected(counted.blocks)
        wrong += cells(log.holdings(True)) != expected(counted.at_peak)
    del unknown
    return wrong


def memory_events(run: Callable[[], object]) -> list[Any]:
    """What torch's profiler tells of the device's memory."""
    with torch.profiler.profile(profile_memory=True) as traced:
        run()
    kineto: Any = traced.profiler
    return [
        [event.nbytes(), event.device_index()]
        for event in kineto.kineto_results.events()
        if event.name() == "[memory]"
        and event.device_type() != torch._C._autograd.DeviceType.CPU
    ]


def beside_torchs_profiler(device: Any) -> Any:
    net, x = Net().to(PLANTED), torch.ones(ROWS, 64, device=PLANTED)

    def step() -> None:
        net(x).sum().backward()
        net.zero_grad()

    step()
    alone = memory_events(step)
    with profile(memory=PLANTED) as prof:
        beside = memory_events(step)
    summary(prof.profile)
    return [len(alone), alone == beside]


def nested(device: Any) -> Any:
    """Blocks in blocks, and in another thread; and what the library calls meanwhile."""
    library = Path(device.__file__).name
    mapped, calls = mappings(library), report_calls(library)
    are_ours = []
    kept: list[torch.Tensor] = []
    found: list[MemorySummary] = []

    def elsewhere() -> None:
        with profile(memory=PLANTED) as there:
            kept.append(take(1024))
        found.append(summary(there.profile))

    with profile(memory=PLANTED) as outer:
        are_ours.append(are_redirected(calls))
        kept.append(take(2048))
        with profile(memory=PLANTED) as inner:
            kept.append(take(4096))
        are_ours.append(are_redirected(calls))
        in_thread(elsewhere)
        kept.append(take(512))
        before = level() - 2048 - 4096 - 1024 - 512
    is_undone = report_calls(library) == calls and mappings(library) == mapped
    found += [summary(inner.profile), summary(outer.profile)]
    outsides = [memory.bytes_by_kind() for memory in found]
    return [len(calls), are_ours, is_undone, before, outsides]


def other_device(device: Any) -> Any:
    """Blocks of another device are not counted."""
    kept = take(512, index=1)
    with profile(memory="planted:0") as prof:
        kept = take(10**6, index=1)
        del kept
        begin = level()
    return [summary(prof.profile).peak_bytes, begin]


class Greedy(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.relu(self.a(x))
        if len(x) > ROWS:
            take(10**9)
        out: torch.Tensor = self.b(hidden)
        return out


def out_of_memory(device: Any) -> Any:
    device.limit_memory(10**8)
    net = Greedy().to(PLANTED)
    with suppress(torch.OutOfMemoryError), profile(memory=PLANTED) as prof:
        for rows in (ROWS, 2 * ROWS):
            net(torch.ones(rows, 64, device=PLANTED)).sum().backward()
    device.limit_memory(2**62)
    failure = summary(prof.profile).failure
    assert failure is not None
    held = {f"{one.owner}, {one.kind}": one.bytes for one in failure.held}
    return [failure.requested_bytes, failure.path, failure.phase, held]


def silent(device: Any) -> Any:
    """The allocator does not report: from the begin, or from somewhere on."""
    found = []
    for begins_late in (False, True):
        device.keep_silent(not begins_late)
        with profile(memory="planted:0") as prof:
            kept = [take(1024)]
            device.keep_silent(True)
            kept.append(take(1024))
        device.keep_silent(False)
        memory = prof.profile.memory
        assert memory is not None
        found.append([memory.at_peak, memory.source, prof.profile.not_measured])
        del kept
    return found


def fork(device: Any) -> Any:
    """A child goes on by itself."""
    kept = take(1024)
    with profile(memory="planted:0") as prof:
        child = os.fork()
        if not child:
            status = 1
            with suppress(BaseException):
                del kept
                kept = take(10**6)
                log = log_of(prof)
                right = log.hears_all and log.level_bytes == level()
                with profile(memory="planted:0") as inner:
                    take(10**6)
                status = int(not (right and summary(inner.profile).at_peak))
            os._exit(status)
        _, status = os.waitpid(child, 0)
    return [status, summary(prof.profile).peak_bytes == level()]


SCENARIOS = (
    first_use,  # first
    trained,
    activations,
    checkpoints,
    crowd,
    random_blocks,
    beside_torchs_profiler,
    nested,
    other_device,
    out_of_memory,
    silent,
    fork,
)


def main(path: str) -> None:
    device = load(Path(path))
    print(json.dumps({each.__name__: each(device) for each in SCENARIOS}))


if __name__ == "__main__":
    main(*sys.argv[1:])
