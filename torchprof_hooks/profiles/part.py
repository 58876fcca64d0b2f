"""A part of a profile."""

from __future__ import annotations

from dataclasses import replace

from torchprof_hooks.profiles.profile import Profile


def part_of(profile: Profile, name: str) -> Profile:
    """What happened in calls of one outermost module: its forward, and the backward and
    recompute that belong to it. Its own times add up to its `wall_ns`."""
    cells = {key: totals for key, totals in profile.cells.items() if key[0][0] == name}
    return replace(
        profile, cells=cells, wall_ns=sum(totals.self_ns for totals in cells.values())
    )
