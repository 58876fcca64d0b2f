"""What is said of kernels; `test_screen.py` has idle time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.build import MS
from tests.documents.found import values
from tests.documents.runs import BUSY
from torchprof_hooks.documents.build.device import kernel_tables
from torchprof_hooks.documents.build.view import View, view_of
from torchprof_hooks.documents.document import Table
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.trace.device_step import DeviceStep, DeviceUse
from torchprof_hooks.profiles.trace.kernels import Kernel, KernelRow

LONG = "void at::native::add<4, Functor<float> >(int, float*)"
COPY = "Memcpy HtoD (Pageable -> Device)"


def row(path: str, phase: Phase, **kernels: tuple[int, int]) -> KernelRow:
    """path: names with "/" between them. kernels: how many, and ms."""
    made = (Kernel(name, n, ms * MS) for name, (n, ms) in kernels.items())
    return KernelRow(tuple(path.split("/")), phase, tuple(made))


ROWS = (
    row("Net", "forward", **{LONG: (1, 2)}),
    row("Net/Net.layers.0", "forward", gemm=(2, 5), relu=(1, 1)),
    row("Net/Net.layers.0", "backward", gemm=(4, 10)),
    row("Net/Net.layers.1", "forward", gemm=(2, 6), a=(1, 1), b=(1, 1), c=(1, 1)),
    row("Net/Net.layers.1", "recompute", gemm=(2, 6)),
    row("(optimizer) SGD", "optimizer", adam=(3, 4)),
    row("(other threads)", "outside", **{COPY: (1, 3)}),
)


def traced(*uses: DeviceUse) -> View:
    profile = BUSY.with_parts(lambda part: replace(part, steps=8))
    return view_of(replace(profile, device_step=DeviceStep(4, 50 * MS, uses)))


def use(name: str = "cuda:0") -> DeviceUse:
    return DeviceUse(name, 30 * MS, (), 40 * MS, ROWS)


def only_table(view: View, *, all_rows: bool = False) -> Table:
    [found] = kernel_tables(view, all_rows=all_rows)
    return found


def in_ms(found: Table, name: str) -> dict[str, float]:
    return {label: ns / MS for label, ns in values(found, name).items() if ns}


def test_kernels_as_a_tree() -> None:
    found = only_table(traced(use()), all_rows=True)
    assert found.title.startswith("cuda:0: 19 kernels of step 4 took 40.00ms")
    busy = in_ms(found, "busy_ns")
    assert (busy["Net"], busy["Net.layers.0"], busy["Net.layers.1"]) == (33, 16, 15)
    assert (busy["(optimizer) SGD"], busy["(other threads)"]) == (4, 3)
    assert in_ms(found, "self_ns") == {
        "Net": 2,
        "Net.layers.0": 16,
        "Net.layers.1": 15,
        "(optimizer) SGD": 4,
        "(other threads)": 3,
    }
    assert in_ms(found, "forward_ns")["Net"] == 2 + 6 + 9
    assert in_ms(found, "backward_ns")["Net"] == 10
    assert in_ms(found, "recompute_ns")["Net.layers.1"] == 6
    assert values(found, "kernels")["Net"] == 15
    assert values(found, "share")["Net"] == pytest.approx(33 / 40)
    assert sum(found.shares) == pytest.approx(1)
    # Full names for programs; without what compilers add, for people.
    assert found.labels[found.names.index(LONG)] == "add<4, Functor<float> >"
    assert COPY in found.labels


def test_texts_have_layers_of_a_kind_together_and_their_longest_kernels() -> None:
    found = only_table(traced(use()))
    assert in_ms(found, "busy_ns")["Net.layers.*"] == 31
    assert list(zip(found.depths, found.labels, strict=True))[:6] == [
        (0, "Net"),
        (1, "layers.*: 2 Module"),
        (2, "gemm"),
        (2, "relu"),
        (2, "a"),  # b and c are left out
        (1, "add<4, Functor<float> >"),
    ]
    assert sum(found.shares) == pytest.approx(1)
