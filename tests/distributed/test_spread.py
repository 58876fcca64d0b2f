"""The process that works longer shows its work, the others that they wait for it,
however a model is spread over them."""

from __future__ import annotations

from functools import partial

import pytest

from tests.distributed.processes import (
    PLANTED,
    is_complete,
    milliseconds_by_phase,
    run_processes,
)
from tests.distributed.spread import KINDS, SIZE, STEPS, import_all, profiles
from torchprof_hooks import Profile
from torchprof_hooks.capture.communication.patches import BUBBLE_NAME
from torchprof_hooks.profiles.ranks.collectives import BUCKETS_NAME

#: What waits at the end of a backward pass, and what it waits for.
BUCKETS = "(waiting for gradients)", BUCKETS_NAME


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
    """Everything that is waited for is told with its group and its bytes."""
    found = {each.name: each for each in profile.collectives if each.calls}
    for name in names:
        own = name.removeprefix("(communication) ").replace(*BUCKETS)
        each = found["recv" if own == BUBBLE_NAME else own]
        assert (each.group_size, each.bytes > 0) == (count, True), (kind, each)
    if kind == "sharded":
        # Two layers of which each has a matrix and a vector, padded to be divided.
        layers = STEPS * 2 * 4 * (SIZE * SIZE + SIZE)
        gathered = found["all_gather_into_tensor"].bytes
        scattered = found["reduce_scatter_tensor"].bytes
        assert layers <= scattered <= gathered
        assert scattered < 1.1 * layers
