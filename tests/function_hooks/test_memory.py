from __future__ import annotations

import io
import mmap
from typing import Any

import pytest
import torch

from tests.cores import NATIVE_CORE
from tests.functions import ONE, Runs, raises, x
from tests.helpers import in_thread
from torchprof_hooks import FunctionHook, add_hook, delete_hook
from torchprof_hooks.capture.tracking.meters.memory import MemoryMeter
from torchprof_hooks.documents.render.units import BYTE_UNITS, format_bytes
from torchprof_hooks.function_hooks import MemoryProfileHook
from torchprof_hooks.hooks import memory as memory_hook
from torchprof_hooks.measure.allocator_counter import Reading
from torchprof_hooks.profiles.errors import MemoryUnavailableError
from torchprof_hooks.profiles.names import ByteUnit

MIB = 2**20
PAGE = mmap.PAGESIZE


class FakeMemory:
    """An allocator with gross counters, as that of CUDA is."""

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


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> FakeMemory:
    fake = FakeMemory()
    meter: Any = lambda device=None: MemoryMeter(fake)  # type: ignore[arg-type]  # noqa: E731
    monkeypatch.setattr(memory_hook, "memory_meter", meter)
    return fake


INPUT = x()

# On the CPU


def near(size: int) -> Any:
    return pytest.approx(size, abs=16 * PAGE)


@NATIVE_CORE
@pytest.mark.parametrize("size", [1024 * MIB, 1500 * MIB])
def test_a_known_tensor_on_the_cpu(size: int) -> None:
    with MemoryProfileHook("cpu") as hook:
        kept = torch.empty(size, dtype=torch.uint8)

    ((name, used, acquired, depth),) = hook.call_history
    assert (name, depth) == ("empty", 0)
    assert used == near(size)
    assert acquired == near(size)
    assert kept.numel() == size


@NATIVE_CORE
def test_bytes_of_a_block_that_comes_and_goes_count() -> None:
    def come_and_go() -> None:
        torch.empty(40 * MIB, dtype=torch.uint8)

    with MemoryProfileHook("cpu") as hook:
        Runs.apply(INPUT, come_and_go)

    sums = hook.summary()["Runs"]
    assert sums["used_bytes"] == near(40 * MIB)
    assert sums["peak_bytes"] == near(40 * MIB)


@NATIVE_CORE
def test_a_backward_that_frees_more_than_it_takes() -> None:
    with MemoryProfileHook("cpu") as hook:
        hidden = torch.ones(10 * MIB, requires_grad=True).exp()
        loss = hidden.sum()
        del hidden  # its 40 MiB live on for the backward of exp
        loss.backward(ONE)

    history = [(name, used) for name, used, _, _ in hook.call_history]
    assert [name for name, _ in history] == ["ones", "exp", "sum", "sum", "exp"]
    assert history[1][1] == near(40 * MIB)
    # It takes 40 MiB for the gradient and frees as much: what it was kept for is done.
    assert history[4][1] == near(40 * MIB)


@NATIVE_CORE
def test_tensors_are_not_kept_alive_by_the_hook() -> None:
    def come_and_go() -> None:
        for _ in range(5):
            torch.empty(40 * MIB, dtype=torch.uint8)

    with MemoryProfileHook("cpu") as hook:
        Runs.apply(INPUT, come_and_go)

    # Never two of them at once.
    assert hook.summary()["Runs"]["peak_bytes"] == near(40 * MIB)
    assert hook.summary()["Runs"]["used_bytes"] == near(5 * 40 * MIB)


# With counters that are known exactly


def step(memory: FakeMemory) -> None:
    """Outer takes 5, then inner 100 of which 60 are freed, then 3; in backward 11."""

    def inner() -> None:
        memory.take(100, acquired=1000)
        memory.free(60)

    def outer() -> None:
        memory.take(5)
        Runs.apply(INPUT, inner)
        memory.take(3)

    Runs.apply(INPUT, outer, lambda: memory.take(11, acquired=20)).sum().backward(ONE)


#: The history of one `step`.
HISTORY = [
    ("clone", 0, 0, 2),
    ("Runs", 100, 1000, 1),
    ("clone", 0, 0, 1),
    ("Runs", 108, 1000, 0),
    ("sum", 0, 0, 0),
    ("sum", 0, 0, 0),
    ("Runs", 11, 20, 0),
]


def measured(memory: FakeMemory, steps: int = 1, **options: Any) -> MemoryProfileHook:
    with MemoryProfileHook(**options) as hook:
        for _ in range(steps):
            step(memory)
    return hook


def test_names() -> None:
    assert MemoryProfileHook.name == "MemoryProfileHook"
    assert issubclass(MemoryProfileHook, FunctionHook)


def test_history_has_bytes_and_depth(memory: FakeMemory) -> None:
    assert measured(memory, steps=2).call_history == HISTORY * 2


def test_totals_count_outermost_calls_only(memory: FakeMemory) -> None:
    hook = measured(memory, steps=2)

    assert hook.total_used_bytes() == 2 * (108 + 11) == memory.used
    assert hook.total_acquired_bytes() == 2 * (1000 + 20) == memory.acquired


def test_summary_sums_up_the_history(memory: FakeMemory) -> None:
    hook = measured(memory, steps=2)
    summary = hook.summary()

    assert list(summary) == ["clone", "Runs", "sum"]
    for name, sums in summary.items():
        calls = [call for call in hook.call_history if call[0] == name]
        assert sums["used_bytes"] == sum(used for _, used, _, _ in calls)
        assert sums["acquired_bytes"] == sum(acquired for _, _, acquired, _ in calls)
        assert sums["occurrence"] == len(calls)
        assert set(sums) == {"used_bytes", "acquired_bytes", "peak_bytes", "occurrence"}


def test_the_peak_is_the_highest_rise_within_one_call(memory: FakeMemory) -> None:
    memory.take(7)
    summary = measured(memory).summary()

    # Outer: 5 and the 100 of inner at their highest, of which 60 are then freed.
    assert summary["Runs"]["peak_bytes"] == 105
    assert summary["sum"]["peak_bytes"] == summary["clone"]["peak_bytes"] == 0


def test_inner_calls_can_be_left_out(memory: FakeMemory) -> None:
    hook = measured(memory)
    own = hook.summary(own=True)

    # Of the 100 + 108 + 11 bytes, 100 are counted twice.
    assert hook.summary()["Runs"]["used_bytes"] == 219
    assert own["Runs"]["used_bytes"] == 119
    assert own["Runs"]["acquired_bytes"] == 1020
    assert own["Runs"]["peak_bytes"] == 105
    assert sum(sums["used_bytes"] for sums in own.values()) == hook.total_used_bytes()


def test_own_bytes_of_different_functions(memory: FakeMemory) -> None:
    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            memory.take(5)
            return Runs.apply(x, lambda: memory.take(100, acquired=1000))

    with MemoryProfileHook() as hook:
        Outer.apply(INPUT.detach())

    assert hook.summary()["Outer"]["used_bytes"] == 105
    own = hook.summary(own=True)
    assert (own["Outer"]["used_bytes"], own["Outer"]["acquired_bytes"]) == (5, 0)
    assert (own["Runs"]["used_bytes"], own["Runs"]["acquired_bytes"]) == (100, 1000)


def test_a_bounded_history_keeps_the_newest_calls(memory: FakeMemory) -> None:
    hook = measured(memory, steps=3, history_size=3)

    assert hook.call_history == HISTORY[-3:]
    assert hook.total_used_bytes() == 3 * 119


def test_sums_are_exact_whatever_the_history_keeps(memory: FakeMemory) -> None:
    # More calls than are kept between two times that the sums are made.
    hook = measured(memory, steps=1000, history_size=10)

    assert hook.summary()["Runs"]["used_bytes"] == 1000 * 219
    assert hook.summary()["Runs"]["occurrence"] == 3000
    assert len(hook.call_history) == 10


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_call_that_raises_does_not_spoil_the_next(
    memory: FakeMemory, error: type[BaseException]
) -> None:
    with MemoryProfileHook() as hook:
        with pytest.raises(error):
            Runs.apply(INPUT, raises(error))
        with pytest.raises(error):
            Runs.apply(INPUT, int, raises(error)).sum().backward(ONE)
        before = len(hook.call_history)
        step(memory)

    assert hook.call_history[before:] == HISTORY
    assert hook.total_used_bytes() == 119


def test_a_hook_on_one_class_counts_only_its_calls(memory: FakeMemory) -> None:
    hook = MemoryProfileHook()
    add_hook(Runs, hook)
    step(memory)
    in_thread(lambda: Runs.apply(x(), lambda: memory.take(1)))
    delete_hook(Runs, hook.name)
    step(memory)

    expected = [call for call in HISTORY if call[0] == "Runs"]
    assert hook.call_history == [*expected, ("Runs", 1, 0, 0)]


def test_a_hook_on_one_torch_function_counts_only_its_calls(
    memory: FakeMemory,
) -> None:
    hook = MemoryProfileHook()
    add_hook(torch.Tensor.sum, hook)
    step(memory)
    delete_hook(torch.Tensor.sum, hook.name)

    assert hook.call_history == [("sum", 0, 0, 0)] * 2


def test_a_hook_that_saw_nothing(memory: FakeMemory) -> None:
    hook, report = MemoryProfileHook(), io.StringIO()
    with hook:
        pass
    hook.print_report(file=report)

    assert (hook.call_history, hook.summary()) == ([], {})
    assert (hook.total_used_bytes(), hook.total_acquired_bytes()) == (0, 0)
    assert "no function was called" in report.getvalue()


def test_numbers_are_those_of_python(memory: FakeMemory) -> None:
    hook = measured(memory)
    numbers = [hook.total_used_bytes(), hook.total_acquired_bytes()]
    numbers += hook.call_history[0][1:]
    for sums in hook.summary().values():
        numbers += [sums["used_bytes"], sums["peak_bytes"], sums["occurrence"]]

    assert {type(number) for number in numbers} == {int}


# Reports


@pytest.mark.parametrize("unit", BYTE_UNITS)
def test_the_report_shows_the_summary(memory: FakeMemory, unit: ByteUnit) -> None:
    hook, report = measured(memory), io.StringIO()
    hook.print_report(unit=unit, file=report)

    def bytes_of(*numbers: int) -> list[str]:
        return [format_bytes(number, unit) for number in numbers]

    assert [line.split() for line in report.getvalue().splitlines()[:-1]] == [
        ["FunctionName", "UsedBytes", "AcquiredBytes", "PeakBytes", "Occurrence"],
        ["clone", *bytes_of(0, 0, 0), "2"],
        ["Runs", *bytes_of(219, 2020, 105), "3"],
        ["sum", *bytes_of(0, 0, 0), "2"],
    ]


def test_the_report_chooses_a_unit_for_each_column(
    memory: FakeMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(memory).print_report()

    assert capsys.readouterr().out == (
        "FunctionName  UsedBytes  AcquiredBytes  PeakBytes  Occurrence\n"
        "       clone      0.00B         0.00KB      0.00B           2\n"
        "        Runs    219.00B         1.97KB    105.00B           3\n"
        "         sum      0.00B         0.00KB      0.00B           2\n"
        "Memory of hpu:0 (caching allocator), gross: freed bytes count too.\n"
    )


def test_the_report_chooses_a_unit_for_each_value(memory: FakeMemory) -> None:
    hook, report = measured(memory), io.StringIO()
    hook.print_report(unit="auto_foreach", file=report)

    rows = [line.split() for line in report.getvalue().splitlines()]
    assert rows[1] == ["clone", "0.00B", "0.00B", "0.00B", "2"]
    assert rows[2] == ["Runs", "219.00B", "1.97KB", "105.00B", "3"]


def test_an_unknown_unit_is_refused(memory: FakeMemory) -> None:
    with pytest.raises(
        ValueError, match="unit must be 'auto', 'auto_foreach', 'B', 'KB'"
    ):
        measured(memory).print_report(unit="MiB")  # type: ignore[arg-type]


@NATIVE_CORE
def test_the_report_of_the_cpu_says_what_was_counted() -> None:
    hook, report = MemoryProfileHook("cpu"), io.StringIO()
    with hook:
        INPUT.exp()
    hook.print_report(file=report)

    last = report.getvalue().splitlines()[-1]
    assert last == (
        "Memory of tensors on the CPU, by the thread that calls, to the byte, gross: "
        "freed bytes count too."
    )


# What is refused


def test_where_memory_cannot_be_measured_the_error_comes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unavailable(device: object = None) -> None:
        raise MemoryUnavailableError("another malloc is in use")

    monkeypatch.setattr(memory_hook, "memory_meter", unavailable)
    with pytest.raises(RuntimeError, match="another malloc is in use"):
        MemoryProfileHook()


@pytest.mark.parametrize("device", ["meta", "nonsense", "cpu:cuda"])
def test_a_wrong_device_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="device must be 'cpu', 'cuda' or"):
        MemoryProfileHook(device)


def test_a_negative_history_size_is_refused(memory: FakeMemory) -> None:
    with pytest.raises(ValueError, match=r"history_size must be .* not -1"):
        MemoryProfileHook(history_size=-1)


@pytest.mark.gpu
def test_bytes_on_a_device_are_exact() -> None:
    # 100,001 bytes are rounded up to a multiple of 512: 196 * 512 = 100,352.
    tensor = torch.ones(100_001, dtype=torch.uint8, device="cuda")

    def come_and_go() -> None:
        tensor.bitwise_not()

    with MemoryProfileHook() as hook:
        kept = tensor + tensor
        Runs.apply(tensor, come_and_go)

    used = {name: sums["used_bytes"] for name, sums in hook.summary().items()}
    assert used["add"] == used["bitwise_not"] == used["clone"] == 100_352
    assert used["Runs"] == 2 * 100_352  # gross: one of the two is free again
    assert hook.summary()["Runs"]["peak_bytes"] == 100_352
    assert hook.total_used_bytes() == 3 * 100_352
    assert kept.is_cuda
