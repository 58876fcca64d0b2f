"""The rows of a profile as JSON and CSV, for other programs. Units are in the names."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from operator import attrgetter
from typing import Any, Final

from torchprof_hooks.profiles.memory import MemorySummary
from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.ranks.collectives import Collective
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.totals import NOTHING, Totals

#: Makes the numbers of a row in a phase.
_Numbers = Callable[[Totals], dict[str, Any]]

#: Numbers of a row in a phase -> what they are of `Totals`.
_TIMES: Final = {
    name: name
    for name in (
        *("calls", "self_ns", "cumulative_ns"),
        *("mean_ns", "std_ns", "min_ns", "max_ns"),
    )
}
_DEVICE_TIMES: Final = {
    name: name for name in ("device_self_ns", "device_cumulative_ns")
}
_BYTES: Final = {
    "self_used_bytes": "memory.used_bytes",
    "self_acquired_bytes": "memory.acquired_bytes",
    "self_retained_bytes": "memory.retained_bytes",
    "cumulative_used_bytes": "memory_cumulative.used_bytes",
    "cumulative_acquired_bytes": "memory_cumulative.acquired_bytes",
    "cumulative_retained_bytes": "memory_cumulative.retained_bytes",
    "peak_bytes": "memory_cumulative.peak_bytes",
}
_OPERATIONS: Final = {
    "self_flops": "flops",
    "cumulative_flops": "flops_cumulative",
    "self_counted_ns": "counted_ns",
    "cumulative_counted_ns": "counted_cumulative_ns",
}

#: What a row stands for.
_NAME_FIELDS: Final = ("name", "class_name", "kind", "module", "compiled")


def render_json(profile: Profile, by: Grouping = "module") -> str:
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
    measured; so are floating-point operations (``self_flops``, ``cumulative_flops``),
    if functions were, with the time in calls for which torch has a formula
    (``self_counted_ns``, ``cumulative_counted_ns``).
    """
    numbers = _numbers_of(profile)
    rows = [_record(row, numbers) for row in profile.rows(by)]
    content = {"by": by, **_profile_record(profile), "rows": rows}
    return json.dumps(content, indent=1)


def _record(row: Row, numbers: _Numbers) -> dict[str, Any]:
    return {
        **_name_record(row),
        "aliases": list(row.aliases),
        "calls": row.calls,
        "self_ns": row.self_ns,
        "cumulative_ns": row.cumulative_ns,
        "phases": _phase_records(row, numbers),
    }


def render_csv(profile: Profile, by: Grouping = "module") -> str:
    """One line for each row of `Profile.rows(by)` and each of its phases, below a line
    of headers.

    Raises:
        ValueError: unknown `by`.

    Example::

        name,class_name,kind,module,compiled,phase,calls,self_ns,cumulative_ns,mean_ns,...
        Net,Net,module,Net,False,forward,10,1000000,51750000,5175000.0,...
        Net,Net,module,Net,False,backward,10,2000000,108250000,10825000.0,...

    The column `self_ns` adds up to the wall time. Columns of device times, bytes and
    operations are there if they were measured.
    """
    return csv_text(flat_fields(profile), flat_records(profile, by))


def csv_text(fields: Sequence[str], records: Iterable[dict[str, Any]]) -> str:
    """A line for each record, below a line with the names of the fields."""
    text = StringIO()
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().removesuffix("\n")


def flat_fields(profile: Profile) -> list[str]:
    """The names of the fields of `flat_records`."""
    return [*_NAME_FIELDS, "phase", *_numbers_of(profile)(NOTHING)]


def flat_records(profile: Profile, by: Grouping) -> Iterator[dict[str, Any]]:
    """A record for each row of `Profile.rows(by)` and each of its phases."""
    numbers = _numbers_of(profile)
    for row in profile.rows(by):
        for phase, found in _phase_records(row, numbers).items():
            yield {**_name_record(row), "phase": phase, **found}


def _profile_record(profile: Profile) -> dict[str, Any]:
    """What is true of the whole run."""
    return {
        "wall_ns": profile.wall_ns,
        "steps": profile.steps,
        "step_times": _step_times_record(profile.step_times),
        "overhead_ns": profile.overhead_ns,
        "aborted_calls": profile.aborted_calls,
        "undivided_passes": profile.undivided_passes,
        "unmeasured_steps": profile.unmeasured_steps,
        "unmeasured_ns": profile.unmeasured_ns,
        "not_measured": list(profile.not_measured),
        "devices": list(profile.devices),
        "device_asked": profile.device_asked,
        "device_waits": profile.device_waits,
        "memory": _memory_record(profile.memory) if profile.memory else None,
        "collectives": [collective_record(each) for each in profile.collectives],
        **_rates_record(profile),
    }


def collective_record(each: Collective) -> dict[str, Any]:
    """See `Collective`."""
    return {**each._asdict(), "bytes_per_second": each.bytes_per_second}


def _rates_record(profile: Profile) -> dict[str, Any]:
    """Peak, utilisation and items per second, where they are known."""
    found: dict[str, Any] = {}
    if profile.peak:
        found["peak"] = asdict(profile.peak)
    if profile.utilisation:
        found.update(profile.utilisation._asdict())
    if profile.items:
        found["items_per_second"] = profile.items_per_second
    return found


def _memory_record(memory: MemorySummary) -> dict[str, Any]:
    bounds = {"peaks_are_lower_bounds": memory.peaks_are_lower_bounds}
    return {**asdict(memory), **bounds}


def _step_times_record(times: StepTimes) -> dict[str, Any]:
    return {
        "first_steps": times.first_steps,
        "first_ns": times.first_ns,
        "later_steps": times.later_steps,
        "later_ns": times.later_ns,
        "median_ns": times.quantile_ns(0.5),
        "percentile_90_ns": times.quantile_ns(0.9),
        "evaluations": times.evaluations,
        "evaluation_ns": times.evaluation_ns,
        "first_evaluations": times.first_evaluations,
        "first_evaluation_ns": times.first_evaluation_ns,
    }


def _name_record(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _NAME_FIELDS}


def _phase_records(row: Row, numbers: _Numbers) -> dict[str, dict[str, Any]]:
    """The numbers of a row by phase, without phases in which there was nothing."""
    return {
        phase: numbers(totals)
        for phase, totals in row.phases.items()
        if totals != NOTHING
    }


def _numbers_of(profile: Profile) -> _Numbers:
    """Makes the numbers of a row in a phase. Device times, bytes and operations are
    there only if they were measured: a 0 would claim that they were."""
    fields = dict(_TIMES)
    if profile.devices:
        fields |= _DEVICE_TIMES
    if profile.memory:
        fields |= _BYTES
    if profile.has_functions:
        fields |= _OPERATIONS
    getters = {name: attrgetter(field) for name, field in fields.items()}
    return lambda totals: {name: get(totals) for name, get in getters.items()}


#: Formats of one record a row, by the names that commands know them by.
ROW_FORMATS: Final[Mapping[str, Callable[[Profile, Grouping], str]]] = {
    "json": render_json,
    "csv": render_csv,
}
