"""The text report: a profile as a tree in a table, with tables of what else it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torchprof_hooks.profiles.names import SORT_KEYS, SortBy
from torchprof_hooks.profiles.options import check_choice, check_whole
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.reports.function_tables import call_site_table, function_table
from torchprof_hooks.reports.memory_tree import memory_tree
from torchprof_hooks.reports.table import percent, plural, wrap
from torchprof_hooks.reports.time_tree import (
    footnotes,
    placed_nodes,
    select_nodes,
    time_tree,
)
from torchprof_hooks.reports.units import best_time, check_unit

#: Modules that are shown unless the user says how many.
_MODULES_SHOWN: Final = 40


def render(
    profile: Profile,
    unit: str = "auto",
    *,
    width: int = 120,
    max_rows: int | None = None,
    sort_by: SortBy | None = None,
) -> str:
    """The report as text; for the parameters see `Reportable.report`.

    Raises:
        ValueError: unknown unit or order, or no rows to show.

    Example::

        torchprof_hooks: 2.00sec wall, 10 steps of 180.00ms (median 180.00ms,
      90 % within 185.00ms) after the first of 0.38sec, 97.5 % in modules and ...

        module            calls  forward     self  backward      self    total      %
        ----------------------------------------------------------------------------
        Net                  10  1.00sec  50.00ms  500.00ms   10.00ms  1.50sec   75.0
          body: Linear       10 ...

    Below that, if functions were recorded, tables of functions and of the places where
    they are called; if memory was measured, the same tree with bytes.
    """
    check_unit(unit)
    check_whole("width", width, least=1)
    if max_rows is not None:
        max_rows = check_whole("max_rows", max_rows, least=1)
    if sort_by is not None:
        check_choice("sort_by", sort_by, SORT_KEYS)
    lines = [_header(profile), *map("not measured: {}".format, profile.not_measured)]
    header = "\n".join(wrap(line, width) for line in lines)
    if profile.is_empty:
        return f"{header}\n\nNo module was called: there is nothing to report."
    return "\n\n".join([header, *_sections(profile, unit, width, max_rows, sort_by)])


def _header(profile: Profile) -> str:
    whole_ns = profile.wall_ns + profile.unmeasured_ns
    facts = list(_measured(profile, whole_ns))
    attributed = percent(profile.attributed_ns, profile.wall_ns)
    functions = ", functions," if profile.has_functions else " and"
    facts.append(f"{attributed} in modules{functions} optimizers")
    overhead = percent(profile.overhead_ns, whole_ns)
    of_all = " of all" if profile.unmeasured_ns else ""
    facts.append(f"measuring took about {overhead}{of_all}{core_of(profile)}")
    if profile.aborted_calls:
        facts.append(f"{plural(profile.aborted_calls, 'call')} ended by an exception")
    if profile.undivided_passes:
        passes = plural(profile.undivided_passes, "backward pass", "backward passes")
        facts.append(f"{passes} over nodes of several threads not divided")
    return "torchprof_hooks: " + ", ".join(facts)


def core_of(profile: Profile) -> str:
    """The core that has measured, in brackets."""
    if not profile.core or profile.core == "native":
        return " (native core)" if profile.core else ""
    reason = f": {profile.core_reason}" if profile.core_reason else ""
    return f" ({profile.core} core{reason})"


def _measured(profile: Profile, whole_ns: int) -> Iterator[str]:
    """How long, and how many steps."""
    wall, whole = best_time(profile.wall_ns), best_time(whole_ns)
    steps = plural(profile.steps, "step")
    if profile.unmeasured_ns:
        share = percent(profile.wall_ns, whole_ns)
        yield f"{wall} of {whole} measured ({share})"
        steps = f"{profile.steps} of {profile.steps + profile.unmeasured_steps} steps"
    else:
        yield f"{wall} wall"
    if profile.steps or profile.step_times.steps:
        yield f"{steps}{step_durations(profile)}"
    yield from _evaluations(profile.step_times)


def step_durations(profile: Profile) -> str:
    """The duration of training steps, as text to follow after their number."""
    times = profile.step_times
    if not times.steps:  # of a file that has no more
        return f" of {best_time(profile.wall_ns / profile.steps)}"
    first, mean = best_time(times.first_mean_ns), best_time(times.mean_ns)
    if not times.later_steps:
        return f" of {first}"
    half, most = best_time(times.quantile_ns(0.5)), best_time(times.quantile_ns(0.9))
    spread = f"{mean} (median {half}, 90 % within {most})"
    if not times.first_steps:
        return f" of {spread}"
    return f" of {spread} after the first of {first}"


def _evaluations(times: StepTimes) -> Iterator[str]:
    if times.evaluations:
        mean = best_time(times.evaluation_mean_ns)
        yield f"{plural(times.evaluations, 'evaluation call')} of {mean}"


def _sections(
    profile: Profile,
    unit: str,
    width: int,
    max_rows: int | None,
    sort_by: SortBy | None,
) -> Iterator[str]:
    nodes = placed_nodes(profile, sort_by)
    shown = select_nodes(nodes, max_rows or _MODULES_SHOWN, sort_by)
    notes = (wrap(line, width) for line in footnotes(profile, nodes, shown))
    yield "\n".join([time_tree(profile, shown, unit, width), *notes])
    if profile.has_functions:
        order = sort_by or "self"
        yield function_table(profile, unit, width, max_rows, order)
        yield call_site_table(profile, unit, width, max_rows, order)
    if profile.memory:
        yield memory_tree(profile, profile.memory, shown, width)
