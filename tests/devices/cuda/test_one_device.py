"""Device times and what they take, to the nanosecond and by count."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.devices.cuda import planted
from tests.devices.cuda.work import Layer, busy, counted_calls, device_ns
from torchprof_hooks import profile, region

pytestmark = pytest.mark.gpu
STEPS = 8  # all of them are stamped


class Block(nn.Module):
    """Layers, and work of its own."""

    def __init__(self, own_ns: int, *layers: Layer) -> None:
        super().__init__()
        self.own_ns = own_ns
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return busy(self.layers(x), self.own_ns)


class Training:
    """Steps of a model whose layers take times that are drawn by chance."""

    def __init__(self, layers: int) -> None:
        draw = random.Random(layers)
        self.layers = [
            Layer(draw.randrange(1000, 900_000), draw.randrange(1000, 900_000))
            for _ in range(layers)
        ]
        self.model = Block(draw.randrange(1000, 900_000), *self.layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.x = torch.zeros(4, device="cuda", requires_grad=True)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.x).sum().backward()
        self.optimizer.step()

    def expected(self, steps: int) -> dict[tuple[str, str], int]:
        times = {("Block", "forward"): steps * self.model.own_ns}
        for n, layer in enumerate(self.layers):
            forward_ns, backward_ns = layer.times
            times[f"Block.layers.{n}", "forward"] = steps * forward_ns
            times[f"Block.layers.{n}", "backward"] = steps * backward_ns
        return times


@pytest.mark.parametrize("memory", [False, True])
def test_times_of_modules(memory: bool) -> None:
    training = Training(12)
    with profile(memory=memory) as prof:
        for _ in range(STEPS):
            training.step()

    assert device_ns(prof.profile) == training.expected(STEPS)
    assert planted.number("violations") == planted.number("bad records") == 0


def test_times_of_functions_are_those_of_their_modules() -> None:
    training = Training(12)
    with profile(functions=True) as prof:
        for _ in range(STEPS):
            training.step()

    found: Counter[str] = Counter()
    for row in prof.profile.rows():
        for phase, totals in row.phases.items():
            found[phase] += totals.device_self_ns
    expected: Counter[str] = Counter()
    for (_, of_phase), ns in training.expected(STEPS).items():
        expected[of_phase] += ns
    assert +found == expected


def test_the_first_step_has_its_own_times() -> None:
    training = Training(12)
    with profile() as prof:
        for _ in range(STEPS):
            training.step()

    assert device_ns(prof.profile.start_up) == training.expected(1)
    assert device_ns(prof.profile.loop) == training.expected(STEPS - 1)


def test_a_program_on_the_cpu_leaves_the_device_alone() -> None:
    model = nn.Linear(4, 4)
    with profile(memory=True) as prof:
        model(torch.zeros(4, 4)).sum().backward()

    assert not torch.cuda.is_initialized()
    assert not {"cudaEventRecord", "cudaMalloc", "cudaSetDevice"} & set(planted.calls())
    assert prof.profile.devices == ()


class Waits(Layer):
    """The host takes some time before it launches anything."""

    host_ns = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        planted.pass_time(self.host_ns)
        return super().forward(x)


@pytest.mark.parametrize(("host_ns", "own_ns"), [(4000, 0), (0, 4000)])
def test_a_device_that_waits_for_the_host(host_ns: int, own_ns: int) -> None:
    model, x = Waits(own_ns), torch.zeros(4, device="cuda")
    model.host_ns = host_ns
    model(x)
    torch.cuda.synchronize()
    with torch.no_grad(), profile() as prof:
        for _ in range(1000):
            model(x)
    found = prof.profile

    # From where a call begins to where it ends, as the device's clock goes on.
    assert device_ns(found) == {("Waits", "forward"): 1000 * (host_ns + own_ns)}
    assert found.device_asked > 5
    assert found.device_waits == (found.device_asked if host_ns else 0)


class Sometimes(nn.Module):
    """Calls what is inside in each third call."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return self.inner(x) if self.calls % 3 == 0 else x


def test_times_of_steps_without_events_are_told_by_calls() -> None:
    model = nn.Sequential(Layer(4000, 6000), Sometimes(Layer(9000)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.zeros(4, device="cuda", requires_grad=True)
    with profile() as prof:
        for _ in range(300):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

    found = device_ns(prof.profile)
    assert found["Sequential.0", "forward"] == 300 * 4000
    assert found["Sequential.0", "backward"] == 300 * 6000
    sometimes_ns = found["Sequential.1.inner", "forward"]
    assert sometimes_ns == pytest.approx(100 * 9000, rel=0.01)
    stamped = sum(step < 8 or step % 8 == 0 for step in range(300))
    assert prof.profile.steps_with_device_times == stamped
    said = f"evice times are those of {stamped} of 300 steps, scaled by calls"
    assert said in " ".join(prof.profile.report().split())


#: Of a layer in one step: two of its forward, and one where its backward begins. Three
#: functions run in its forward, of which two have a backward.
RECORDS = {False: 3, True: 2 + 3 * 2 + 2}


@pytest.mark.parametrize("functions", [False, True])
def test_what_is_done_for_each_layer(functions: bool) -> None:
    counts = []
    for layers in (20, 10, 20):  # what is made once is made in the first run
        training = Training(layers)
        training.step()
        torch.cuda.synchronize()
        with profile(functions=functions):
            for _ in range(4):
                training.step()
            before = planted.calls(), planted.number("waits")
            with counted_calls() as python:
                for _ in range(4):
                    training.step()
            done = planted.calls() - before[0]
            waits = planted.number("waits") - before[1]
        counts.append((done, waits, python[0]))
    _, (fewer, _, python_of_fewer), (more, waits, python_of_more) = counts

    def of_layer(name: str) -> float:
        return (more[name] - fewer[name]) / (10 * 4)

    records = RECORDS[functions]
    assert of_layer("cudaEventRecord") == records
    assert of_layer("cuStreamIsCapturing") == records
    assert of_layer("cudaStreamQuery") + of_layer("cudaEventQuery") <= records / 17
    assert more["cudaEventCreateWithFlags"] == 0
    assert waits == 0
    assert abs(python_of_more - python_of_fewer) < 10  # of layers: none


def test_each_change_of_the_owner_is_one_record() -> None:
    training = Training(1)
    with profile(), region("all"):  # in which no step ends
        training.step()
        counts = []
        for regions in (10, 20):
            before = planted.number("timing records")
            for _ in range(regions):
                with region("part"):  # to it, and back
                    pass
            counts.append(planted.number("timing records") - before)
    assert counts[1] - counts[0] == 2 * 10


def test_no_event_is_made_once_there_are_enough() -> None:
    training = Training(10)
    for is_last in (False, True):
        before = planted.calls()
        with profile():
            for _ in range(STEPS):
                training.step()
        if is_last:
            assert (planted.calls() - before)["cudaEventCreateWithFlags"] == 0


def test_the_host_never_waits_for_a_device_that_is_thousands_of_steps_behind() -> None:
    training = Training(2)
    training.step()
    torch.cuda.synchronize()
    with profile() as prof:
        waits = planted.number("waits")
        for _ in range(2000):
            training.step()
        assert planted.number("waits") == waits

    assert device_ns(prof.profile) == training.expected(2000)


@pytest.mark.parametrize("by_another_thread", [False, True])
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_captures_go_on(mode: Any, by_another_thread: bool) -> None:
    training, captured = Training(40), Layer(1000)
    x, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
    begun, measured = threading.Event(), threading.Event()

    def capture() -> None:
        with (
            torch.no_grad(),
            torch.cuda.graph(graph, capture_error_mode=mode),
        ):
            captured(x)
            begun.set()
            if by_another_thread:
                assert measured.wait(60)

    with profile() as prof:
        for _ in range(3):  # memory is taken
            training.step()
        if by_another_thread:
            thread = threading.Thread(target=capture)
            thread.start()
            assert begun.wait(60)
            for _ in range(STEPS - 3):  # hundreds of stamps: some are asked for
                training.step()
            measured.set()
            thread.join()
        else:
            capture()
            for _ in range(STEPS - 3):
                training.step()
        graph.replay()

    assert planted.number("captures") == 1
    assert planted.number("violations") == 0
    assert planted.number("timing records in captures") == 0
    found = device_ns(prof.profile)
    expected = training.expected(STEPS)
    assert {place: found.get(place) for place in expected} == expected
    assert ("Layer", "forward") not in found  # what is captured, or replayed


class Captures(nn.Module):
    """Captures what is inside into a graph, and replays it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Layer(1000), Layer(3000))

    def forward(self, x: torch.Tensor) -> None:
        busy(x, 70)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.inner(x)
        graph.replay()


def test_a_graph_that_is_replayed_in_the_call_that_captures_it() -> None:
    model, x = Captures(), torch.zeros(4, device="cuda")
    with torch.no_grad(), profile() as prof:
        for _ in range(STEPS):
            model(x)

    assert device_ns(prof.profile) == {("Captures", "forward"): STEPS * 4070}


class Does(nn.Module):
    """What it is given."""

    def forward(self, *does: Callable[[], object]) -> None:
        for each in does:
            each()


def test_a_graph_that_is_replayed_in_another_call_than_captured_it() -> None:
    layer, x, graph = Layer(1000), torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
    capture = torch.cuda.graph(graph)
    begins, ends = Does(), Does()
    with torch.no_grad(), profile() as prof, region("all"):  # in which no step ends
        begins(capture.__enter__)
        layer(x)
        ends(lambda: capture.__exit__(None, None, None), graph.replay)

    # No stamp was taken at its begin: it may as well be the work of the first call.
    assert device_ns(prof.profile) == {}


def test_a_device_that_fails_for_good() -> None:
    training = Training(2)
    with profile() as prof:
        for _ in range(3):
            training.step()
        planted.put(failing=1)
        with pytest.raises(RuntimeError):
            training.step()

    assert "Block" in prof.profile.report()
