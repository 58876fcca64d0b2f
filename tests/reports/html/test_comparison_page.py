from __future__ import annotations

from dataclasses import replace

from tests.helpers import hand_built, timed
from tests.reports.html.test_page import HOSTILE, Page, shown
from torchprof_hooks import Profile
from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.compare import compare
from torchprof_hooks.profiles.parts import FirstSteps
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.reports.html.comparison import comparison_page

MS = 10**6


def run(fc_ms: int, head_ms: int, extra: str = "") -> Profile:
    """Ten steps of a Net in which two layers take so long, give or take 1 us."""

    def calls(duration_ms: int) -> list[int]:
        return [duration_ms * MS + 1000 * (number % 2) for number in range(10)]

    cells = {
        ("Net > Net.fc", "forward"): timed(*calls(fc_ms)),
        ("Net > Net.head", "forward"): timed(*calls(head_ms)),
        ("Net > Net.same", "forward"): timed(*calls(7)),
    }
    modules = {"Net": "Net", "Net.fc": "Linear", "Net.head": "Linear", "Net.same": "A"}
    if extra:
        cells[f"Net > {extra}", "forward"] = timed(*calls(1))
        modules[extra] = "New"
    return hand_built(cells, modules, steps=10)  # type: ignore[arg-type]


def classes(page: str) -> dict[str, str]:
    """The class of each frame that is drawn without a script, by its name."""
    taken = Page(page)
    frames = [str(a["class"]) for tag, a in taken.elements if tag == "svg" and "x" in a]
    titles = [title.partition(":")[0] for title in taken.inside("title")[1:]]
    return dict(zip(titles, frames, strict=True))


def test_what_matters_is_coloured() -> None:
    page = comparison_page(compare(run(10, 30), run(20, 27, "Net.new")))
    assert classes(page) == {
        "everything": "frame whole",
        "Net": "frame same",
        "Net.fc": "frame slower2",
        "Net.head": "frame faster1",
        "Net.same": "frame same",
        "Net.new": "frame new",
    }


def test_the_largest_changes_come_first() -> None:
    text = shown(comparison_page(compare(run(10, 30), run(20, 27, "Net.new"))))
    assert "10 steps of 47.00ms before, 10 steps of 55.00ms now" in text
    assert "Slower Net.fc (forward) +10.00ms (+100.0 %) a call" in text
    assert "Faster Net.head (forward) -3.00ms (-10.0 %) a call" in text
    assert "only now: Net.new (forward)" in text


def test_changes_are_in_the_data() -> None:
    comparison = compare(run(10, 30), run(20, 27))
    data = Page(comparison_page(comparison)).data
    found = {
        (data["texts"][name], data["texts"][phase]): (before, now, verdict)
        for name, phase, before, now, _, verdict, _ in data["changes"]
    }
    assert found == {
        (change.name, change.phase): (
            round(change.old.mean_ns),
            round(change.new.mean_ns),
            change.is_slower - change.is_faster,
        )
        for change in comparison.changes
    }


def test_the_picture_shows_modules_whatever_is_compared() -> None:
    page = comparison_page(compare(run(10, 30), run(20, 30), "class"))
    assert classes(page)["Net.fc"] == "frame slower2"
    data = Page(page).data
    assert {data["texts"][change[0]] for change in data["changes"]} == {"A", "Linear"}


def test_nothing_changed() -> None:
    text = shown(comparison_page(compare(run(10, 30), run(10, 30))))
    assert "Slower Nothing 0 of 3 rows, beyond noise and threshold" in text


def test_an_empty_profile_says_so() -> None:
    text = shown(comparison_page(compare(run(10, 30), Profile())))
    assert "No module was called in the new profile." in text


def test_names_are_never_markup() -> None:
    for name in HOSTILE:
        old, new = run(10, 30, name), replace(run(20, 30), core_reason=name)
        page = comparison_page(compare(old, new))
        assert page.count("<script") == page.count("</script") == 2
        assert "onerror=alert(1)>" not in page
        assert page.isascii()


def test_the_first_step_is_in_the_picture_as_in_the_numbers() -> None:
    whole = run(10, 30)
    cells: dict[CellKey, Totals] = {(("Net", "Net.fc"), "forward"): timed(10 * MS)}
    apart = replace(whole, first=FirstSteps(1, cells))
    page = comparison_page(compare(whole, apart))
    trees = Page(comparison_page(compare(whole, whole))).data["trees"]
    assert Page(page).data["trees"] == trees
    assert "Start-up" not in shown(page)
