"""How idle time of devices is told."""

from __future__ import annotations

from torchprof_hooks.profiles.trace.device_idle import DeviceIdle, DeviceUse, IdleRow
from torchprof_hooks.reports.program.device_idle import idle_lines

MS = 1_000_000
ROWS = (
    IdleRow("Net.layers.0.mlp", "forward", 8 * MS),
    IdleRow("Net.layers.1.mlp", "forward", 7 * MS),
    IdleRow("Net.layers.0.mlp", "backward", 6 * MS),
    IdleRow("(data loading)", "data", 9 * MS),
)
IDLE = DeviceIdle(5, 100 * MS, (DeviceUse("cuda:0", 70 * MS, ROWS),))


def test_layers_of_a_kind_have_one_row() -> None:
    assert "\n".join(idle_lines(IDLE, 20)) == (
        """\
cuda:0: busy 70.0 % of step 5 (100.00ms), idle 30.00ms while the host was in:
    15.00ms  15.0 %  Net.layers.*.mlp, forward
     9.00ms   9.0 %  (data loading)
     6.00ms   6.0 %  Net.layers.*.mlp, backward"""
    )


def test_what_is_left_has_a_row() -> None:
    assert list(idle_lines(IDLE, 2))[1:] == [
        "    15.00ms  15.0 %  Net.layers.*.mlp, forward",
        "    15.00ms  15.0 %  (2 other places)",
    ]
    assert len(list(idle_lines(IDLE, 3))) == 4


def test_a_device_that_was_never_idle() -> None:
    busy = DeviceIdle(5, 100 * MS, (DeviceUse("cuda:1", 100 * MS),))

    assert list(idle_lines(busy, 4)) == ["cuda:1: busy 100.0 % of step 5 (100.00ms)"]


def test_without_kernels_it_says_so() -> None:
    assert list(idle_lines(DeviceIdle(4, MS), 4)) == [
        "Device: no kernels of a device were recorded in step 4"
    ]


def test_without_a_traced_step_it_says_why() -> None:
    found = DeviceIdle(reason="another profiler of torch was running")

    assert list(idle_lines(found, 4)) == [
        "Device: idle time is not known: another profiler of torch was running"
    ]
