"""The rows of a profile as JSON."""

from __future__ import annotations

import json
from typing import Any

from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports.export.records import (
    name_record,
    phase_records,
    profile_record,
)


def render(profile: Profile, by: Grouping = "module") -> str:
    """The rows of `Profile.rows(by)`, most expensive first, and what is true of the
    whole run.

    Raises:
        ValueError: unknown `by`.

    Example::

        {"by": "class", "wall_ns": 2000000, "steps": 10, ..., "memory": null,
         "rows": [
          {"name": "Linear", "class_name": "Linear", "kind": "module", ...,
           "calls": 20, "self_ns": 1500000, "cumulative_ns": 1500000,
           "phases": {"forward": {"calls": 20, "self_ns": 500000, ...,
                                  "mean_ns": 25000.0, "std_ns": 2000.0, ...},
                      "backward": {...}}},
          ...]}

    All own times add up to `wall_ns`. Device times and bytes are there if they were
    measured.
    """
    rows = [_record(profile, row) for row in profile.rows(by)]
    content = {"by": by, **profile_record(profile), "rows": rows}
    return json.dumps(content, indent=1)


def _record(profile: Profile, row: Row) -> dict[str, Any]:
    return {
        **name_record(row),
        "aliases": list(row.aliases),
        "calls": row.calls,
        "self_ns": row.self_ns,
        "cumulative_ns": row.cumulative_ns,
        "phases": phase_records(profile, row),
    }
