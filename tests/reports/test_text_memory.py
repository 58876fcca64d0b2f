from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers import NOT_MODULES, STEP, hand_built, own, table
from torchprof_hooks import Profile
from torchprof_hooks.profiles.memory import MemorySummary, MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.reports.text import render

KB = 1024
MB = 1024**2
GB = 1024**3

CUDA = MemorySummary("cuda:0", False, 3 * GB // 2, ("Net", "Net.fc"), "backward")


def per_call(
    calls: int, used: int, acquired: int = 0, retained: int = 0, peak: int = 0
) -> Totals:
    """A cell of so many calls, each of which uses and retains that much."""
    memory = MemoryTotals(calls * used, acquired, calls * retained, peak)
    return own(1, calls, memory=memory)


# Ten steps of Net, which calls fc and then block, which is recomputed.
TRAINED = hand_built(
    {
        ("Net", "forward"): per_call(10, 2 * MB, 20 * MB, MB, 9 * MB),
        ("Net > Net.fc", "forward"): per_call(10, 3 * MB, 0, 3 * MB, 3 * MB),
        ("Net > Net.block", "forward"): per_call(10, MB, 0, 0, 512 * KB),
        ("Net", "backward"): per_call(10, 0, 0, 0, 7 * MB),
        ("Net > Net.fc", "backward"): per_call(10, 6 * MB, 2 * MB, 0, 8 * MB),
        ("Net > Net.block", "backward"): per_call(10, 4 * MB, 0, 0, 6 * MB),
        ("Net > Net.block", "recompute"): per_call(10, MB, 0, 0, 512 * KB),
        ("(optimizer) SGD", "optimizer"): per_call(10, 600 * KB, 3 * MB, 0, 700 * KB),
        ("(outside modules)", "outside"): per_call(0, 0, 64 * MB),
    },
    {"Net": "Net", "Net.fc": "Linear", "Net.block": "Block", **NOT_MODULES},
    memory=CUDA,
)


def memory_part(profile: Profile, width: int = 120, max_rows: int = 40) -> str:
    """The last part of the report."""
    return render(profile, width=width, max_rows=max_rows).split("\n\n")[-1]


def test_the_tree_of_modules_with_bytes() -> None:
    # Net, with fc and block: forward 2 + 3 + 1, of which 1 + 3 remain, backward 6 + 4;
    # it is recomputed in parts only, so per forward call. Its peak is that of its own
    # calls. Acquired: 20, and 2 in fc's backward.
    assert memory_part(TRAINED) == table("""
memory of cuda:0 (gross): peak 1.50GB in Net.fc (backward)
forward, backward, ...: bytes handed out per call, freed or not, with inner calls; \
retained: still in use when forward
  returned; peak: highest rise during a call; acquired: taken from the device, in all \
calls
module             forward  retained  backward  recompute      step      peak  acquired
---------------------------------------------------------------------------------------
Net                 6.00MB    4.00MB   10.00MB     1.00MB              9.00MB   22.00MB
  fc: Linear        3.00MB    3.00MB    6.00MB                         8.00MB    2.00MB
  block: Block      1.00MB              4.00MB     1.00MB              6.00MB
(optimizer) SGD                                            600.00KB  700.00KB    3.00MB
(outside modules)                                                               64.00MB
""")


def test_bytes_of_batches_have_a_column() -> None:
    profile = hand_built(
        {
            ("Net", "forward"): per_call(2, MB, 0, MB, MB),
            ("(data loading)", "data"): per_call(2, 3 * MB, 0, 3 * MB, 4 * MB),
        },
        {"Net": "Net", "(data loading)": ModuleInfo(kind="data")},
        memory=replace(CUDA, peak_path=("(data loading)",), peak_phase="data"),
    )

    first, *_, rows = memory_part(profile).split("\n", 3)
    assert first.endswith("peak 1.50GB in (data loading)")
    assert rows == table("""
module          forward  retained    data    peak
-------------------------------------------------
Net              1.00MB    1.00MB          1.00MB
(data loading)                     3.00MB  4.00MB
""")


def test_the_rows_are_those_of_the_table_of_times() -> None:
    parts = render(TRAINED, max_rows=2).split("\n\n")

    times, memory = (part.splitlines() for part in parts[1:])
    assert [line.split()[0] for line in times[2:]] == ["Net", "block:", "..."]
    assert [line.split()[0] for line in memory[-2:]] == ["Net", "block:"]


def test_bytes_of_functions_are_those_of_their_modules() -> None:
    # Net's own 1 MB and 2 MB of its function; the peak is that of Net's calls.
    profile = hand_built(
        {
            ("Net", "forward"): per_call(10, MB, 0, 0, 2 * MB),
            ("Net > f()", "forward"): per_call(20, MB, 0, MB // 2, 9 * MB),
        },
        {"Net": "Net"},
        memory=CUDA,
    )

    assert memory_part(profile).splitlines()[-3:] == [
        "module  forward  retained    peak",
        "---------------------------------",
        "Net      3.00MB    1.00MB  2.00MB",
    ]


def test_net_bytes_may_be_negative() -> None:
    profile = hand_built(
        {
            ("Net", "forward"): per_call(2, 3 * MB, 0, 3 * MB, 3 * MB),
            ("Net", "backward"): per_call(2, -5 * MB // 2, 4 * KB),
        },
        {"Net": "Net"},
        memory=MemorySummary("cpu", True, 5 * KB, ("Net",), "forward"),
    )

    assert memory_part(profile) == table("""
memory of the process (C allocator, net: freed bytes are subtracted): peak at least \
5.00KB in Net (forward)
backward, ...: bytes handed out per call, less those freed, with inner calls; \
retained: still in use when forward
  returned; peak: highest rise during a call, at least: read where calls begin and \
end; acquired: taken from the system,
  in all calls
module  retained  backward    peak  acquired
--------------------------------------------
Net       3.00MB   -2.50MB  3.00MB    4.00KB
""")


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (
            MemorySummary("cuda:1", False, 2048),
            "memory of cuda:1 (gross): peak 2.00KB in (outside modules)",
        ),
        (
            MemorySummary("cuda:1", True, 2048, ("Net.b",), "recompute"),
            "memory of cuda:1 (net: freed bytes are subtracted): peak 2.00KB in "
            "Net.b (recompute)",
        ),
        (
            MemorySummary(
                "cuda:0", False, 1, ("Net", "Net.fc", "f(2)", "g(3)"), "forward"
            ),
            "memory of cuda:0 (gross): peak 1.00B in Net.fc: g(3) (forward)",
        ),
        (
            MemorySummary("cuda:0", False, 1, ("f(2)", "g(3)"), "backward"),
            "memory of cuda:0 (gross): peak 1.00B in g(3) (backward)",
        ),
        (
            MemorySummary("cuda:0", False, 1, ("(optimizer) SGD",), "optimizer"),
            "memory of cuda:0 (gross): peak 1.00B in (optimizer) SGD",
        ),
        (
            MemorySummary("cuda:0", False, 1, ("Net", "Gone"), "forward"),
            "memory of cuda:0 (gross): peak 1.00B in Gone (forward)",
        ),
        (
            MemorySummary("cuda:0", False, 1, ("Net",), "forward", "no counter"),
            "memory of cuda:0 (gross): peak 1.00B in Net (forward); in a part of the "
            "run it was not measured: no counter",
        ),
    ],
)
def test_the_call_that_set_the_peak_is_named(
    memory: MemorySummary, expected: str
) -> None:
    profile = hand_built(
        {
            ("Net > Net.fc > f(2) > g(3)", "forward"): own(1),
            ("Net.b", "forward"): own(1),
            ("(optimizer) SGD", "optimizer"): own(1),
        },
        {"Net": "Net", "Net.fc": "Linear", "Net.b": "B", **NOT_MODULES},
        memory=memory,
    )

    assert memory_part(profile, width=200).splitlines()[0] == expected


def test_memory_that_could_not_be_measured() -> None:
    profile = replace(STEP, memory=MemorySummary(unavailable="no counter in this libc"))

    assert memory_part(profile) == ("memory was not measured: no counter in this libc")


def test_memory_that_was_not_asked_for_is_not_mentioned() -> None:
    assert "memory" not in render(STEP)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_table_keeps_its_width(width: int) -> None:
    lines = memory_part(TRAINED, width=width).splitlines()

    assert max(map(len, lines)) <= max(width, 82)  # 12 for the names
