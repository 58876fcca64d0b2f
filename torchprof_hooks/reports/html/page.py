"""Pages about profiles."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from torchprof_hooks.profiles.files.writing import replaced_file
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.reports.header import OTHER_THREADS
from torchprof_hooks.reports.html.answers import answer_cards, answers
from torchprof_hooks.reports.html.document import Section, document
from torchprof_hooks.reports.html.escaping import escaped
from torchprof_hooks.reports.html.facts import facts, headline
from torchprof_hooks.reports.html.memory import memory_section
from torchprof_hooks.reports.html.page_data import PageData
from torchprof_hooks.reports.html.phases import phase_section
from torchprof_hooks.reports.html.static_table import definition_list, module_table
from torchprof_hooks.reports.program.device_idle import idle_lines
from torchprof_hooks.reports.source import Source, source_of, source_of_loop

#: What the picture means.
_LEGEND = (
    "Each frame is a module: as wide as its time, with the modules that it calls below "
    "it. The redder, the more of all the time layers of its kind spend themselves; the "
    "dark line at the foot of a frame is its own share."
)
#: Its colours, from cold to hot: icicle.ts has these shares.
_SCALE = (
    '<p class="scale">share of all the time, own, of layers of a kind: '
    + "".join(
        f'<span><i class="heat{number}"></i>{text}</span>'
        for number, text in enumerate(("less", "1 %", "3 %", "7 %", "15 %", "30 %"))
    )
    + "</p>"
)
#: How it is used.
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
        nothing = Section("", f"<p>{text}</p>")
        return document(title, "", [nothing, _measured(source)])
    data = PageData().content(source)
    return document(title, headline(source), _sections(source), data)


def _sections(source: Source) -> Iterator[Section]:
    yield Section("", answer_cards(answers(source)))
    yield Section("Where the time goes", _SCALE + picture(_LEGEND))
    table = module_table(source.rows("module"), source.modules.wall_ns)
    yield Section("Numbers", rows(table))
    yield Section("Phases and steps", phase_section(source))
    memory = memory_section(source)
    if memory:
        yield Section("Memory", memory)
    idle = source.program.device_idle
    if idle is not None:
        items = "".join(f"<li>{escaped(line)}</li>" for line in idle_lines(idle, 20))
        yield Section("Idle time of devices", f"<ul>{items}</ul>")
    yield Section("Tips", _tips(source))
    yield _measured(source)


def picture(legend: str) -> str:
    """The place where the script draws the modules by time."""
    return (
        '<div id="picture"><svg id="icicle" class="icicle" width="100%" height="26" '
        'aria-label="The module tree by time"><text x="5" y="16">The picture needs '
        "JavaScript; the numbers below do not.</text></svg></div>"
        f'<p class="legend">{escaped(f"{legend} {_KEYS}")}</p>'
    )


def rows(table: str) -> str:
    """The place of the tables, which the script takes over."""
    return f'<div id="rows">{table}</div>'


def _tips(source: Source) -> str:
    if not source.tips:
        return "<p>None: nothing that is looked for was found.</p>"
    return f"<ul>{''.join(f'<li>{escaped(str(tip))}</li>' for tip in source.tips)}</ul>"


def _measured(source: Source) -> Section:
    return Section("What was measured, and how", definition_list(facts(source)))
