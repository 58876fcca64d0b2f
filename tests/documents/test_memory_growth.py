"""What documents say of memory that grows."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.documents.made import made, ms
from torchprof_hooks.documents.build.memory_growth import growth_table, growth_warnings
from torchprof_hooks.documents.render.table import Sheet, lines_of
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.memory import (
    GrowingMemory,
    HeldMemory,
    MemoryKind,
    MemorySummary,
)
from torchprof_hooks.profiles.names import Phase

KB = 1024

TABLE = """\
Memory that grows with each step, by owner
owner                  kind                     a step    in use  since step     %
----------------------------------------------------------------------------------
Net.blocks.*: 4 Block  activations             40.00KB    3.40MB          14  81.6
(outside modules)      other                    5.00KB  445.00KB          12  10.2
Net                    activations, gradients   4.00KB  347.00KB          14   8.2
A cache that is still filling, and what is collected in an epoch, look the same"""


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
    return made(
        {(f"Net > {layer}", "forward"): ms(1) for layer in LAYERS},
        {"Net": "Net", **dict.fromkeys(LAYERS, "Block")},
        memory=MemorySummary(
            "cpu", 9000 * KB, ("Net",), "forward", "", (PEAK,), growing=growing
        ),
    )


def test_who_grows_by_how_much_since_when_and_what_to_look_for() -> None:
    profile = profile_with(*GROWING)
    assert [*growth_warnings(profile)] == [
        "Memory grows by 49.00KB a step since step 12: Net.blocks.*: 4 Block 40.00KB, "
        "(outside modules) 5.00KB, 1 more (activations, other, gradients). Is a loss "
        "or an output kept? Keep .item() or .detach()"
    ]
    [table] = growth_table(profile)
    assert [line.text for line in lines_of(table, Sheet(100))] == TABLE.splitlines()


def test_other_kinds_have_other_reasons() -> None:
    for kind, word in {
        "gradient": "create_graph",
        "other": "batches",
        "buffer": "buffers",
        "optimizer state": "optimizer",
    }.items():
        [text] = growth_warnings(profile_with(grows("Net", kind, KB, 3)))  # type: ignore[arg-type]
        assert word in text


def test_nothing_is_said_where_nothing_grows() -> None:
    for profile in (profile_with(), replace(profile_with(), memory=None)):
        assert not [*growth_warnings(profile), *growth_table(profile)]
        assert "grow" not in profile.report(full=True)


def test_all_reports_have_it() -> None:
    profile = profile_with(*GROWING)
    found = json.loads(profile.to_json())
    [warning] = found["warnings"]
    assert warning.startswith("Memory grows by 49.00KB a step")
    row, *_ = found["tables"]["memory_growth"]["rows"]
    assert row == {
        "name": "Net.blocks.*: 4 Block",
        "kinds": "activations",
        "bytes_per_step": 40 * KB,
        "bytes": 4 * 87 * 10 * KB,
        "since_step": 14,
        "share": 40 / 49,
    }
    assert "Memory grows by" in profile.report()
    assert "Memory that grows with each step" in profile.report(full=True)
