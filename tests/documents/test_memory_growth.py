"""What documents say of memory that grows: a golden document has the words."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.build import ms, profile_of
from torchprof_hooks.documents.build.memory import growth_table, growth_warnings
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.memory import (
    GrowingMemory,
    HeldMemory,
    MemoryKind,
    MemorySummary,
)
from torchprof_hooks.profiles.names import Phase

KB = 1024


def grows(
    path: str, kind: MemoryKind, a_step: int, since: int, phase: Phase = "forward"
) -> GrowingMemory:
    """As it is after 100 steps."""
    names = tuple(path.split(" > "))
    return GrowingMemory(names, phase, kind, (101 - since) * a_step, a_step, since)


LAYERS = [f"Net.blocks.{number}" for number in range(4)]
GROWING = (
    *(grows(f"Net > {layer}", "activation", 10 * KB, 14) for layer in LAYERS),
    grows("(outside modules)", "other", 5 * KB, 12, "outside"),
    grows("Net", "activation", 3 * KB, 14),
    grows("Net", "gradient", KB, 15, "backward"),
)
PEAK = HeldMemory(("Net",), "forward", "activation", 9000 * KB)


def profile_with(*growing: GrowingMemory) -> Profile:
    return profile_of(
        {(f"Net > {layer}", "forward"): ms(1) for layer in LAYERS},
        {"Net": "Net", **dict.fromkeys(LAYERS, "Block")},
        memory=MemorySummary(
            "cpu", 9000 * KB, ("Net",), "forward", "", (PEAK,), growing=growing
        ),
    )


def test_nothing_is_said_where_nothing_grows() -> None:
    for profile in (profile_with(), replace(profile_with(), memory=None)):
        assert not [*growth_warnings(profile), *growth_table(profile)]
        assert "grow" not in profile.report(full=True)


def test_a_row_for_programs() -> None:
    row, *_ = json.loads(profile_with(*GROWING).to_json())["tables"]["memory_growth"][
        "rows"
    ]
    assert row == {
        "name": "Net.blocks.*: 4 Block",
        "kinds": "activations",
        "bytes_per_step": 40 * KB,
        "bytes": 4 * 87 * 10 * KB,
        "since_step": 14,
        "share": 40 / 49,
    }
