"""The page that compares two profiles: what became slower is red, what became faster
is blue, and what may be chance is neither."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf
from typing import Any, Final

from torchprof_hooks.profiles.compare import RISK, Change, Comparison, compare
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.reports.html.answers import Answer, answer_cards
from torchprof_hooks.reports.html.document import Section, document
from torchprof_hooks.reports.html.facts import facts
from torchprof_hooks.reports.html.page import picture, rows
from torchprof_hooks.reports.html.page_data import PageData
from torchprof_hooks.reports.html.static_table import (
    definition_list,
    html_table,
)
from torchprof_hooks.reports.source import source_of_all
from torchprof_hooks.reports.table import Table, TextColumn, percent, plural
from torchprof_hooks.reports.units import best_time

#: A change of more than so much of the old time is a strong one.
_STRONG: Final = 0.25
#: Rows without a script.
_ROWS: Final = 100


def comparison_page(comparison: Comparison) -> str:
    """A page about the new profile, coloured by how it differs from the old one."""
    of_modules = comparison
    if comparison.by != "module":
        of_modules = compare(
            comparison.old, comparison.new, "module", comparison.threshold
        )
    subtitle = f"{_steps(comparison.old)} before, {_steps(comparison.new)} now"
    if comparison.new.is_empty:
        nothing = Section("", "<p>No module was called in the new profile.</p>")
        return document("Comparison", subtitle, [nothing])
    sections = _sections(comparison)
    return document("Comparison", subtitle, sections, _data(comparison, of_modules))


def _steps(profile: Profile) -> str:
    if not profile.steps:
        return best_time(profile.wall_ns)
    times = profile.step_times
    mean_ns = times.mean_ns if times.later_steps else profile.wall_ns / profile.steps
    return f"{plural(profile.steps, 'step')} of {best_time(mean_ns)}"


def _sections(comparison: Comparison) -> Iterator[Section]:
    yield Section("", answer_cards(_answers(comparison)))
    yield Section("What changed", picture(_legend(comparison)))
    yield Section("Numbers", rows(_table(comparison)))
    only = list(_only_in_one(comparison))
    if only:
        yield Section("Only in one of them", definition_list(only))
    for title, profile in (("before", comparison.old), ("now", comparison.new)):
        measured = definition_list(facts(source_of_all(profile)))
        yield Section(f"What was measured, {title}", measured)


def _legend(comparison: Comparison) -> str:
    return (
        "Frames are as wide as the time that they take now. Red became slower, blue "
        f"faster: by more than {100 * comparison.threshold:g} % of the mean time of a "
        f"call, and by more than chance explains (at a risk of about {100 * RISK:g} % "
        f"for all rows together); the strong colours by more than {100 * _STRONG:g} %. "
        "Grey may be noise. A dashed frame was not there before."
    )


def _answers(comparison: Comparison) -> Iterator[Answer]:
    for question, found in (
        ("Slower", comparison.slower),
        ("Faster", comparison.faster),
    ):
        count = f"{len(found)} of {plural(len(comparison.changes), 'row')}"
        if not found:
            yield Answer(question, "Nothing", f"{count}, beyond noise and threshold")
            continue
        most = max(found, key=lambda change: abs(change.difference_ns))
        yield Answer(
            question,
            f"{most.name} ({most.phase})",
            f"{_difference(most)} a call, the largest of {count}",
        )


def _difference(change: Change) -> str:
    sign = "+" if change.difference_ns > 0 else ""
    share = percent(change.difference_ns, change.old.mean_ns)
    return f"{sign}{best_time(change.difference_ns)} ({sign}{share})"


def _table(comparison: Comparison) -> str:
    ranked = sorted(comparison.changes, key=lambda change: -change.difference_ns)
    shown = ranked[:_ROWS]
    columns = [
        TextColumn("phase", [change.phase for change in shown], True),
        TextColumn("before", [best_time(change.old.mean_ns) for change in shown]),
        TextColumn("now", [best_time(change.new.mean_ns) for change in shown]),
        TextColumn("change", [_difference(change) for change in shown]),
        TextColumn("noise", [_noise(change) for change in shown]),
        TextColumn("calls", [_calls(change) for change in shown]),
        TextColumn("verdict", [change.verdict for change in shown], True),
    ]
    labels = [comparison.by, *(change.name for change in shown)]
    caption = f"Changes: {len(shown)} of {len(ranked)} rows"
    return html_table(caption, Table(labels, columns))


def _noise(change: Change) -> str:
    return "unknown" if isinf(change.noise_ns) else best_time(change.noise_ns)


def _calls(change: Change) -> str:
    before, after = str(change.old.calls), str(change.new.calls)
    return before if before == after else f"{before}, {after}"


def _only_in_one(comparison: Comparison) -> Iterator[tuple[str, str]]:
    for title, keys in (
        ("only before", comparison.gone),
        ("only now", comparison.added),
    ):
        for name, phase in keys[:_ROWS]:
            yield title, f"{name} ({phase})"
        if len(keys) > _ROWS:
            yield title, f"{len(keys) - _ROWS} more"


def _data(comparison: Comparison, of_modules: Comparison) -> dict[str, Any]:
    packed = PageData()
    changes = _packed(packed, comparison.changes)
    in_picture = _packed(packed, of_modules.changes)
    before = {change.name for change in of_modules.changes}
    added = {name for name, _ in of_modules.added} - before
    positions = [packed.text(name) for name in sorted(added)]
    source = source_of_all(comparison.new)
    content = packed.content(source)
    content |= {"changes": changes, "added": positions}
    if of_modules is not comparison:
        content["moduleChanges"] = in_picture
    return content


def _packed(packed: PageData, changes: Sequence[Change]) -> list[list[Any]]:
    return [
        [
            packed.text(change.name),
            packed.text(change.phase),
            round(change.old.mean_ns),
            round(change.new.mean_ns),
            None if isinf(change.noise_ns) else round(change.noise_ns),
            change.is_slower - change.is_faster,
            _calls(change),
        ]
        for change in changes
    ]
