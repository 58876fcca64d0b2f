"""Compiled regions: times of modules inside, and CUDA graphs that replay them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.attribution.test_compiled_code import (
    Checkpointed,
    blocks_alone,
    folder,
    fresh_compiler,
)
from tests.attribution.test_compiled_kernels import Gated
from tests.compiled import DIVIDED, Net, during, rows_of
from tests.devices.cuda import planted
from tests.devices.cuda.test_traced_step import use_of
from tests.devices.cuda.work import device_ns
from torchprof_hooks import Profile, profile
from torchprof_hooks.instruments.compiled.observer import REPLAYED
from torchprof_hooks.kernel.torch_names.inductor import wrappers

__all__ = ["folder", "fresh_compiler"]

pytest.importorskip("triton", reason="TRITON=1 make test-cuda has it")
pytestmark = [DIVIDED, pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
STEPS = 8  # all of them are stamped
#: `ms` of what is in a `Net`, and where that is.
INSIDE = {
    1: "Net.blocks.0.up",
    10: "Net.blocks.0.down",
    3: "Net.blocks.1.up",
    30: "Net.blocks.1.down",
    2: "Net.head",
}
#: How long the device takes for an `ms`: this, and for its gradient three times that.
NS = 1009


def trained(model: Callable[[torch.Tensor], Any], steps: int = STEPS) -> Profile:
    for ms in INSIDE:
        during[ms] = [partial(torch.cuda._sleep, ms * NS)]
        during[-ms] = [partial(torch.cuda._sleep, 3 * ms * NS)]
    waits = []
    with profile() as prof:
        for _ in range(steps):
            waits.append(planted.number("waits"))
            x = torch.ones(2, 4, device="cuda", requires_grad=True)
            torch.compiler.cudagraph_mark_step_begin()
            model(x).sum().backward()
    assert steps < STEPS or waits == waits[:1] * steps
    assert planted.number("violations") == planted.number("bad records") == 0
    assert planted.number("timing records in captures") == 0
    return prof.profile


def of_modules() -> dict[tuple[str, str], int]:
    times = {}
    for ms, name in INSIDE.items():
        times[name, "forward"] = STEPS * ms * NS
        times[name, "backward"] = 3 * STEPS * ms * NS
    return times


@pytest.mark.parametrize("way", [torch.compile, blocks_alone])
def test_times_are_those_of_the_same_model_as_written(way: Any, clock: None) -> None:
    expected = trained(Net())
    model = way(Net())
    trained(model, 1)
    found = trained(model)
    assert rows_of(found) == rows_of(expected)
    assert device_ns(found) == device_ns(expected) == of_modules()


def test_code_in_partitions(clock: None) -> None:
    """Those that CUDA graphs will replay, in the first step, and what is between."""
    unsafe = ["torchprof_hooks_tests::gradient"]
    with torch._inductor.config.patch(custom_should_partition_ops=unsafe):
        found = trained(torch.compile(Checkpointed(), mode="reduce-overhead"), 1)
    assert any("partition_1" in vars(each) for each in wrappers())
    as_written = trained(Checkpointed(), 1)
    rows, times = rows_of(as_written), device_ns(as_written)
    unused = "Checkpointed.blocks.0.down"  # again: compiled code leaves that out
    rows[unused] = (*rows[unused][:4], 0, 0)
    del times[unused, "recompute"]
    assert rows_of(found) == rows
    assert device_ns(found) == times
    assert not found.not_measured


def test_graphs_that_are_replayed(clock: None) -> None:
    model = torch.compile(Net(), mode="reduce-overhead")
    trained(model, 3)
    captures = planted.number("captures")
    assert captures > 0
    found = trained(model)
    assert planted.number("captures") == captures
    assert device_ns(found) == {
        ("Net", "forward"): STEPS * sum(INSIDE) * NS,
        ("Net", "backward"): 3 * STEPS * sum(INSIDE) * NS,
    }
    assert found.not_measured == (REPLAYED,)


GEMM_NS, TRITON_NS = 50_021, 7013


def test_kernels_of_triton() -> None:
    planted.put(gemm_ns=GEMM_NS)
    planted.plan("triton_", TRITON_NS)
    model = nn.Sequential(Gated(16), Gated(512)).cuda()
    compiled, x = torch.compile(model), torch.zeros(16, 8, device="cuda")

    def steps(**options: Any) -> Profile:
        with profile(**options) as prof:
            for _ in range(STEPS):
                compiled(x).sum().backward()
            torch.cuda.synchronize()
        return prof.profile

    steps()
    before = len(planted.ran())
    found = device_ns(steps())
    ran = Counter[str]()
    for each in planted.ran()[before:]:
        ran[each.name] += each.end_ns - each.start_ns
    triton = {name: ns for name, ns in ran.items() if name.startswith("triton_")}
    assert len(triton) > 5
    assert sum(found.values()) == sum(ran.values())
    for number in "01":
        of_gemm = STEPS * GEMM_NS
        for layer in "up", "down":
            place = f"Sequential.{number}.{layer}"
            assert found[place, "forward"] == of_gemm
            assert found[place, "backward"] // of_gemm in (1, 2)
        fused = f"Sequential.{number}.fused: act + norm"
        assert found[fused, "forward"] == STEPS * TRITON_NS
    planted.put(real_clock=1)
    use = use_of(steps(kernels=True))
    rows = {(row.module, row.phase): row.kernels for row in use.kernels}
    [kernel] = rows["Sequential.1.fused: act + norm", "forward"]
    assert kernel.name.startswith("triton_per_fused_gelu_native_layer_norm")
    assert kernel.calls == 1


@torch.library.custom_op("torchprof_hooks_tests::apart", mutates_args=())
def apart(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


apart.register_fake(torch.empty_like)
apart.register_autograd(lambda _, gradient: apart(gradient))


class Apart(nn.Module):
    """Between kernels of Triton, as the operator may run nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = 2 * apart(2 * x)
        return found


def kernels_of(
    model: nn.Module, **options: Any
) -> dict[tuple[str, str], dict[str, int]]:
    """How often each place has run each kernel in a traced step. Without copies: those
    of inputs of graphs, and others, which the runtime shows only in graphs."""
    torch._dynamo.reset()
    compiled, x = torch.compile(model, **options), torch.zeros(16, 8, device="cuda")
    with profile(kernels=True) as prof:
        for _ in range(STEPS):
            model.zero_grad()
            torch.compiler.cudagraph_mark_step_begin()
            compiled(x).sum().backward()
        torch.cuda.synchronize()
    assert prof.profile.not_measured == (REPLAYED,) * bool(options)
    found: dict[tuple[str, str], dict[str, int]] = {}
    for row in use_of(prof.profile).kernels:
        calls = {each.name: each.calls for each in row.kernels}
        copies = {name for name in calls if "multi_tensor" in name or name == "memcpy"}
        if calls.keys() - copies:
            left = {name: count for name, count in calls.items() if name not in copies}
            found[row.module, row.phase] = left
    return found


def test_kernels_of_graphs_in_the_traced_step() -> None:
    """They are those of the same code without graphs: in one, and in partitions."""
    planted.put(real_clock=1)
    model = nn.Sequential(Gated(16), Apart(), Gated(512)).cuda()
    expected = kernels_of(model)
    layers = {f"Sequential.{n}.{name}" for n in "02" for name in ("up", "down")}
    assert {name for name, _ in expected} >= layers
    assert kernels_of(model, mode="reduce-overhead") == expected
    unsafe = ["torchprof_hooks_tests::apart"]
    with torch._inductor.config.patch(custom_should_partition_ops=unsafe):
        assert kernels_of(model, mode="reduce-overhead") == expected
    assert any("partition_1" in vars(each) for each in wrappers())
