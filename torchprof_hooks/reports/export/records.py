"""Rows of a profile as records of plain Python types; units are in the names."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torchprof_hooks.profiles.memory import MemorySummary
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.totals import Totals


def profile_record(profile: Profile) -> dict[str, Any]:
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
        "memory": _memory_record(profile.memory) if profile.memory else None,
    }


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
    }


def name_record(row: Row) -> dict[str, Any]:
    """What a row stands for."""
    return {
        "name": row.name,
        "class_name": row.class_name,
        "kind": row.kind,
        "module": row.module,
        "compiled": row.compiled,
    }


def phase_records(profile: Profile, row: Row) -> dict[str, dict[str, Any]]:
    """The numbers of a row by phase, without phases in which there was nothing."""
    return {
        phase: _numbers(profile, totals)
        for phase, totals in row.phases.items()
        if totals != Totals()
    }


def number_fields(profile: Profile) -> list[str]:
    """The names of the numbers that a phase has."""
    return list(_numbers(profile, Totals()))


def _numbers(profile: Profile, totals: Totals) -> dict[str, Any]:
    """Device times and bytes only where they were measured: 0 would say more."""
    numbers: dict[str, Any] = {
        "calls": totals.calls,
        "self_ns": totals.self_ns,
        "cumulative_ns": totals.cumulative_ns,
        "mean_ns": totals.mean_ns,
        "std_ns": totals.std_ns,
        "min_ns": totals.min_ns,
        "max_ns": totals.max_ns,
    }
    if profile.devices:
        numbers["device_self_ns"] = totals.device_self_ns
        numbers["device_cumulative_ns"] = totals.device_cumulative_ns
    if profile.memory:
        numbers.update(_bytes(totals))
    return numbers


def _bytes(totals: Totals) -> dict[str, int]:
    own, cumulative = totals.memory, totals.memory_cumulative
    return {
        "self_used_bytes": own.used_bytes,
        "self_acquired_bytes": own.acquired_bytes,
        "self_retained_bytes": own.retained_bytes,
        "cumulative_used_bytes": cumulative.used_bytes,
        "cumulative_acquired_bytes": cumulative.acquired_bytes,
        "cumulative_retained_bytes": cumulative.retained_bytes,
        "peak_bytes": cumulative.peak_bytes,
    }
