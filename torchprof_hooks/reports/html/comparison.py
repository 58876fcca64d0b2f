"""The page that compares two profiles: what became slower is red, what became faster
is blue, and what may be chance is neither."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf
from typing import Any, Final

from torchprof_hooks.profiles.compare import Change, Comparison, compare
from torchprof_hooks.profiles.tree import Node
from torchprof_hooks.reports.comparison import (
    change_table,
    change_texts,
    counts,
    heading,
    only_in_one,
    shown_changes,
)
from torchprof_hooks.reports.hottest import Answer
from torchprof_hooks.reports.html.document import (
    Section,
    answer_cards,
    bullets,
    document,
    html_table,
    paragraphs,
)
from torchprof_hooks.reports.html.page import facts, picture, rows
from torchprof_hooks.reports.html.page_data import PageData
from torchprof_hooks.reports.html.static_icicle import Colour, static_icicle
from torchprof_hooks.reports.source import source_of_all
from torchprof_hooks.reports.table import plural

#: A change of more than so much of the old time is a strong one (main.ts has it, too).
_STRONG: Final = 0.25
#: What the picture means.
_LEGEND: Final = (
    "Frames are as wide as the time that they take now. Red became slower, blue "
    f"faster, the strong colours by more than {100 * _STRONG:g} %; grey may be noise. "
    "A dashed frame was not there before."
)
#: Rows without a script.
_ROWS: Final = 100


def comparison_page(comparison: Comparison) -> str:
    """A page about the new profile, coloured by how it differs from the old one."""
    of_modules = comparison
    if comparison.by != "module":
        of_modules = compare(
            comparison.old, comparison.new, "module", comparison.threshold
        )
    subtitle, *notes = heading(comparison)
    if comparison.new.is_empty:
        nothing = Section("", paragraphs(["No module was called in the new profile."]))
        return document("Comparison", subtitle, [nothing])
    sections = _sections(comparison, of_modules, notes)
    return document("Comparison", subtitle, sections, _data(comparison, of_modules))


def _sections(
    comparison: Comparison, of_modules: Comparison, notes: Sequence[str]
) -> Iterator[Section]:
    yield Section("", answer_cards(_answers(comparison)))
    icicle = static_icicle(comparison.new.tree(), _by_change(of_modules))
    yield Section("What changed", picture(icicle, _LEGEND))
    shown = shown_changes(comparison, _ROWS)
    caption = f"Changes: {len(shown)} of {plural(len(comparison.changes), 'row')}"
    table = rows(html_table(caption, change_table(comparison.by, shown)))
    below = (*notes, *only_in_one(comparison, _ROWS))
    yield Section("Numbers", table + paragraphs(below))
    for title, profile in (("before", comparison.old), ("now", comparison.new)):
        found = source_of_all(profile)
        said = [found.times_text, *found.step_texts, *facts(found)]
        yield Section(f"What was measured, {title}", bullets(said))


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
        _, _, _, difference, percent, *_ = change_texts(most)
        share = f" ({percent} %)" * bool(percent)
        yield Answer(
            question,
            f"{most.name} ({most.phase})",
            f"{difference}{share} a call, the largest of {count}",
        )


def _by_change(comparison: Comparison) -> Colour:
    """Colours modules by their largest change that matters (as main.ts does)."""
    largest: dict[str, Change] = {}
    for change in comparison.changes:
        known = largest.get(change.name)
        if change.matters and (
            known is None or abs(change.difference_ns) > abs(known.difference_ns)
        ):
            largest[change.name] = change
    added = _names_only_now(comparison)

    def colour(node: Node) -> str:
        change = largest.get(node.name)
        if change is None:
            return "new" if node.name in added else "same"
        is_strong = abs(change.difference_ns) > _STRONG * change.old.mean_ns
        return f"{change.verdict}{1 + is_strong}"

    return colour


def _names_only_now(comparison: Comparison) -> set[str]:
    before = {change.name for change in comparison.changes}
    return {name for name, _ in comparison.added} - before


def _data(comparison: Comparison, of_modules: Comparison) -> dict[str, Any]:
    packed = PageData()
    changes = _packed(packed, comparison.changes)
    in_picture = _packed(packed, of_modules.changes)
    added = [packed.text(name) for name in sorted(_names_only_now(of_modules))]
    source = source_of_all(comparison.new)
    content = packed.content(source)
    content |= {"changes": changes, "added": added}
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
            counts(change),
        ]
        for change in changes
    ]
