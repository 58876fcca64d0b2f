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
from tests.distributed.spread import KINDS, STEPS, import_all, profiles


# With four, there are also ranks that are neither the first nor the last.
@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.thorough), 4])
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
