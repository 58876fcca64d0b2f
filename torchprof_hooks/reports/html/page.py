"""Pages about profiles."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from torchprof_hooks.profiles.files.writing import replaced_file
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.reports.header import OTHER_THREADS, device_text, rank_texts
from torchprof_hooks.reports.hottest import Answer, answers, shares_of
from torchprof_hooks.reports.html.document import (
    Section,
    answer_cards,
    bullets,
    document,
    html_table,
    paragraphs,
    preformatted,
)
from torchprof_hooks.reports.html.page_data import PageData
from torchprof_hooks.reports.html.phases import phase_section
from torchprof_hooks.reports.html.static_icicle import (
    LEVEL_TEXTS,
    by_heat,
    static_icicle,
)
from torchprof_hooks.reports.memory_tree import heading
from torchprof_hooks.reports.program.compilation import compilation_lines
from torchprof_hooks.reports.program.device_idle import idle_lines
from torchprof_hooks.reports.row_table import row_table
from torchprof_hooks.reports.source import Source, source_of, source_of_loop
from torchprof_hooks.reports.table import percent, plural
from torchprof_hooks.version import __version__

#: What the picture means.
_LEGEND = (
    "Each frame is a module: as wide as its time, with the modules that it calls below "
    "it. The redder, the more of all the time layers of its kind spend themselves; the "
    "dark line at the foot of a frame is its own share."
)
#: Its colours, from cold to hot.
_SCALE = (
    '<p class="scale">share of all the time, own, of layers of a kind: '
    + "".join(
        f'<span><i class="heat{number}"></i>{text}</span>'
        for number, text in enumerate(LEVEL_TEXTS)
    )
    + "</p>"
)
#: Rows that are shown without a script, which would show as many as one asks for.
_ROWS = 50
#: What is said where there is no tip.
_NO_TIP = "None of the usual troubles was found, so there is no tip."
#: How the picture is used.
_KEYS = (
    "A click zooms in. On the keyboard, arrows move, Enter zooms in, Escape zooms out."
)


def profile_page(profile: Profile, *, corrected: bool = True) -> str:
    """See `Profile.to_html`."""
    return _page(source_of(profile, corrected=corrected))


def program_page(program: ProgramProfile) -> str:
    """The page of a whole program: estimates for all steps of its loop, as on the
    screen."""
    return _page(source_of_loop(program))


def write_page(page: str, path: str | Path) -> None:
    """Write a page to a file, as a whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    with replaced_file(path) as file:
        file.write(page)


def framed(page: str) -> str:
    """A page inside of another one, a notebook: its script can reach nothing there."""
    return (
        '<iframe sandbox="allow-scripts" title="Profile" loading="lazy" '
        'style="width:100%;height:44rem;border:0;border-radius:8px" '
        f'srcdoc="{escape(page)}"></iframe>'
    )


def _page(source: Source) -> str:
    title = f"Profile of {source.title}" if source.title else "Profile"
    if source.modules.is_empty:
        text = f"No module was called: there is nothing to show. {OTHER_THREADS}"
        nothing = Section("", paragraphs([text]))
        return document(title, "", [nothing, _measured(source)])
    data = PageData().content(source)
    headline = [*rank_texts(source.measured), source.times_text, *source.step_texts]
    subtitle = " \N{MIDDLE DOT} ".join(headline)
    return document(title, subtitle, _sections(source), data)


def _sections(source: Source) -> Iterator[Section]:
    yield Section("", answer_cards(_answers(source)))
    icicle = static_icicle(source.tree, by_heat(source.tree))
    yield Section("Where the time goes", _SCALE + picture(icicle, _LEGEND))
    all_rows = sorted(source.rows("module"), key=lambda row: (-row.self_ns, row.name))
    table = row_table(source.modules, "module", all_rows[:_ROWS], "auto_foreach")
    caption = f"Modules: {len(table.labels) - 1} of {len(all_rows)} rows, own times"
    yield Section("Numbers", rows(html_table(caption, table)))
    yield Section("Phases and steps", phase_section(source))
    memory = source.measured.memory
    if memory is not None:
        yield Section("Memory", paragraphs([heading(source.measured, memory)]))
    compiled = source.program.compilation
    if not compiled.is_empty:
        lines = compilation_lines(compiled, every_pass=False)
        yield Section("Compilation", preformatted(lines))
    idle = source.program.device_idle
    if idle is not None:
        yield Section("Idle time of devices", bullets(idle_lines(idle, 20)))
    tips = [str(tip) for tip in source.tips]
    nothing = "None: nothing that is looked for was found."
    yield Section("Tips", bullets(tips or [nothing]))
    yield _measured(source)


def _answers(source: Source) -> Iterator[Answer]:
    """Where the time goes, and the first tip; without one, where to look."""
    yield from answers(source.hottest, shares_of(source.modules))
    if source.tips:
        claim, remedy = source.tips[0]
        more = len(source.tips) - 1
        others = f" ({plural(more, 'more tip')} below)" if more else ""
        if remedy.partition(" ")[0].isalpha():  # no code
            remedy = remedy[0].upper() + remedy[1:]
        yield Answer("What to do", remedy or "Look here first", f"{claim}.{others}")
    elif source.hottest is not None:
        answer = f"Look at {source.hottest.name} first"
        yield Answer("What to do", answer, _NO_TIP)


def picture(icicle: str, legend: str) -> str:
    """The place of the icicle, which the script takes over."""
    text = paragraphs([f"{legend} {_KEYS}"], "legend")
    return f'<div id="picture">{icicle}</div>{text}'


def rows(table: str) -> str:
    """The place of the tables, which the script takes over."""
    return f'<div id="rows">{table}</div>'


def _measured(source: Source) -> Section:
    return Section("What was measured, and how", bullets(facts(source)))


def facts(source: Source) -> Iterator[str]:
    """All that is known of how it was measured."""
    profile, shown = source.measured, source.modules
    attributed = percent(shown.attributed_ns, shown.wall_ns)
    yield f"{attributed} of the time is in modules, functions and optimizers"
    if source.start_up:
        yield "the start-up is a column of the phases, and in no other number here"
    yield from source.notes
    if profile.devices:
        yield device_text(profile) or f"devices: {', '.join(profile.devices)}"
    if not profile.has_functions:
        yield "functions were not measured: profile(functions=True) does"
    if profile.memory is None:
        yield "memory was not measured: profile(memory=True) does"
    yield f"torchprof_hooks {__version__}"
