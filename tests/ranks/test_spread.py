"""The process that works longer shows its work, the others that they wait for it,
however a model is spread over them."""

from __future__ import annotations

from functools import partial

import pytest

from tests.ranks.processes import (
    PLANTED,
    is_complete,
    milliseconds_by_phase,
    run_processes,
)
from tests.ranks.spread import (
    KINDS,
    SIZE,
    STEPS,
    functions_of_shards,
    import_all,
    profiles,
)
from torchprof_hooks import Profile

#: Waits of which nobody knows what is exchanged.
UNKNOWN = {"(waiting for gradients)", "(communication) wait_tensor"}


# With four, there are also ranks that are neither the first nor the last.
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_who_works_and_who_waits(count: int) -> None:
    import_all()
    measured = run_processes(partial(profiles, kinds=KINDS), count)
    planted = STEPS * PLANTED
    for kind, (_, names) in KINDS.items():
        *waiting, late = (found[kind] for found in measured)
        assert is_complete(late), kind
        assert milliseconds_by_phase(late)["forward"] >= 0.99 * planted, kind
        for profile in waiting:
            assert is_complete(profile), kind
            assert names <= {row.name for row in profile.rows()}, kind
            # What they compute besides takes as long as a busy machine makes it.
            phases = milliseconds_by_phase(profile)
            waited = phases.get("communication", 0) + phases.get("waiting", 0)
            assert waited > 0.6 * planted, (kind, phases)
            check_exchanged(kind, names, profile, count)


def check_exchanged(kind: str, names: set[str], profile: Profile, count: int) -> None:
    """What Python begins is told with its group and its bytes."""
    found = {each.name: each for each in profile.collectives}
    for name in names - UNKNOWN:
        each = found[name.removeprefix("(communication) ")]
        assert (each.group_size, each.bytes > 0) == (count, True), (kind, each)
    if kind == "sharded":
        # Two layers of which each has a matrix and a vector, padded to be divided.
        layers = STEPS * 2 * 4 * (SIZE * SIZE + SIZE)
        gathered = found["all_gather_into_tensor"].bytes
        scattered = found["reduce_scatter_tensor"].bytes
        assert layers <= scattered <= gathered
        assert scattered < 1.1 * layers


def test_functions_of_a_sharded_model() -> None:
    import_all()
    one_step = 2 * 4 * SIZE * SIZE  # floating-point operations of a product
    for profile in run_processes(functions_of_shards):
        assert is_complete(profile)
        layers = {
            row.name.partition(":")[0]: row
            for row in profile.rows("call")
            if f": linear(4x{SIZE}, {SIZE}x{SIZE}, {SIZE})" in row.name
        }
        # With all weights, gathered. The first layer's input needs no gradient.
        products = {"Net.0": 2, "Net.2": 3}
        assert {name: row.flops for name, row in layers.items()} == {
            name: STEPS * count * one_step for name, count in products.items()
        }
        for row in layers.values():
            calls = [row.phases[phase].calls for phase in ("forward", "backward")]
            assert calls == [STEPS, STEPS]
        rows = {row.name: row for row in profile.rows("function")}
        # What is called inside of an exchange is a part of that. Layers gather twice.
        exchanges = [row for row in rows.values() if row.kind == "communication"]
        times_ns = {
            row.name: row.phases["communication"].duration_ns for row in exchanges
        }
        # Without what the profiler takes for functions that are called inside.
        own_ns = profile.phase_times_ns()["communication"]
        assert sum(times_ns.values()) / 2 < own_ns <= sum(times_ns.values())
        found = {each.name: each for each in profile.collectives}
        assert found["all_gather_into_tensor"].calls == 2 * 2 * STEPS
        assert found["reduce_scatter_tensor"].calls == 2 * STEPS
        for name, each in found.items():
            took_ns = each.call_ns + each.waiting_ns
            assert 0 < took_ns <= times_ns[f"(communication) {name}"]
