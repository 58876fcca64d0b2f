"""The page of the ranks of a run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ranks_of import MS, USUAL, Work, as_rank, of_rank, profile_of, ranks_of
from tests.reports.html.test_browser import Open, assert_accessible, browser, opened
from tests.reports.html.test_page import HOSTILE, Page
from tests.thorough import in_turns
from torchprof_hooks import Profile
from torchprof_hooks.profiles.ranks.collectives import Collective
from torchprof_hooks.profiles.ranks.provenance import Coordinate
from torchprof_hooks.profiles.ranks.rank import Rank
from torchprof_hooks.profiles.ranks.ranks import Ranks, run_of
from torchprof_hooks.program.file_tools import main
from torchprof_hooks.reports.html.page import profile_page
from torchprof_hooks.reports.html.ranks import ranks_page

__all__ = ["browser", "opened"]  # fixtures

SLOW: Work = {**USUAL, ("Net > Net.head", "forward"): 35}
RANKS = ranks_of([USUAL, USUAL, SLOW, USUAL])


def texts(ranks: Ranks, **options: Any) -> list[str]:
    """What stands on the page, in its order."""
    page = Page(ranks_page(ranks, **options))
    return [
        t for where, t in page.texts if where not in ("script", "style") and t.strip()
    ]


def cards(ranks: Ranks) -> list[tuple[str, str, str]]:
    """Questions, answers, and what they rest on."""
    found = re.findall(
        r'<div class="card"><h2>(.*?)</h2><p class="answer">(.*?)</p>(?:<p>(.*?)</p>)?',
        ranks_page(ranks).replace("<wbr>", "").replace("&#160;", " "),
    )
    return [(question, answer, evidence) for question, answer, evidence in found]


def test_who_is_slow_what_that_costs_and_where() -> None:
    assert cards(RANKS) == [
        (
            "Which rank do the others wait for?",
            "Rank 2 is slow: the others wait 30.00ms for it in each step of 81.00ms "
            "(37.0 %).",
            "It spends that in Net.head, forward: 35.00ms a step, the others 5.00ms. "
            "Up to 4.05ms may be chance: steps differ.",
        ),
    ]


def test_nobody_is_blamed_where_all_are_alike() -> None:
    [(_, answer, evidence)] = cards(ranks_of([USUAL] * 3))
    assert answer.startswith("Even: no rank waits for another beyond noise (")
    assert evidence.startswith("Each spends about 1.00ms (2.0 %) in communication")


def test_without_communication_nothing_is_known() -> None:
    profile = profile_of(USUAL, [0], of_rank(0, 1))
    [(_, answer, _)] = cards(run_of([as_rank(profile)]))
    assert answer.startswith("No rank was seen to communicate: ")


def test_steps_and_rows_side_by_side() -> None:
    found = texts(RANKS)
    assert found.count("rank 2, slow") == 1
    assert found.count("rank 0") == 1
    table = found[found.index("Where ranks differ") :]
    assert table[table.index("Net.head") :][:7] == [
        *("Net.head", "forward", "5.00ms", "5.00ms", "35.00ms", "2", "30.00ms")
    ]
    # It has waited, which is no reason to look at it.
    assert "(waiting for gradients)" not in found


def with_collectives(rank: int, waiting_ms: int) -> Rank:
    """A rank that has called one function 10 times, with 2 MB in each call."""
    found = Collective(
        *("all_reduce", "mesh_dp", 2, 10, 20_000_000),
        *(10 * MS, 10 * waiting_ms * MS, 100 * MS),
    )
    profile = profile_of(USUAL, [1], of_rank(rank, 2))
    return as_rank(replace(profile, collectives=(found,)))


def test_what_ranks_exchange() -> None:
    ranks = run_of([with_collectives(0, 30), with_collectives(1, 2)])
    found = texts(ranks)
    table = found[found.index("all_reduce (mesh_dp of 2)") :]
    assert table[1:9] == [
        *("20", "1.91MB", "1.00ms", "2.00ms", "16.00ms", "30.00ms", "1"),
        "0.200",
    ]


def test_ranks_that_exchange_nothing_have_no_table_of_it() -> None:
    """Processes that do not communicate, or in ways that are not seen."""
    nothing: Work = {("Net", "forward"): 10.0}
    ranks = [as_rank(profile_of(nothing, [0], of_rank(n, 2))) for n in range(2)]
    found = texts(run_of(ranks))
    assert "What ranks exchange" not in found
    assert "In no row by more than one per cent of a step." in found
    assert "What ranks exchange" in texts(run_of([with_collectives(0, 1)]))


def test_places_in_a_mesh_and_who_is_compared() -> None:
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    found = []
    for number, (stage, replica) in enumerate(places):
        where = (Coordinate("pp", stage, 2), Coordinate("dp", replica, 2))
        provenance = of_rank(number, 4, coordinates=where)
        found.append(as_rank(profile_of(USUAL, [1], provenance)))
    shown = texts(run_of(found))
    assert "Compared with each other, for they do the same: 0, 1; 2, 3." in shown
    header = shown.index("pp")
    assert shown[header : header + 2] == ["pp", "dp"]
    row = shown.index("2", header)
    assert shown[row : row + 3] == ["2", "1", "0"]


def test_bars_are_as_long_as_steps() -> None:
    short = profile_of({("Net", "forward"): 10}, [0], of_rank(0, 2))
    long = profile_of({("Net", "forward"): 40}, [0], of_rank(1, 2))
    page = ranks_page(run_of([as_rank(short), as_rank(long)]))
    widths = re.findall(r'class="phases" style="width:([\d.]+)%"', page)
    assert widths == ["25.00", "100.00"]


def test_rows_are_those_that_are_asked_for() -> None:
    assert "Linear" in texts(RANKS, by="class")
    page = ranks_page(RANKS, max_rows=1)
    assert "Own time in a step: 1 of 1 row; skew" in page


def test_ranks_without_a_file_and_other_files_are_named() -> None:
    profile = profile_of(USUAL, [1], of_rank(1, 3))
    found = texts(run_of([as_rank(profile)], ["left out: x.json is broken"]))
    assert "MISSING: there is no file of ranks 0, 2." in found
    assert "left out: x.json is broken" in found


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_text(name: str) -> None:
    provenance = of_rank(0, 1, host=name, command=name, device=name, torch=name)
    profile = profile_of({(name, "forward"): 5}, [1], provenance)
    page = Page(ranks_page(run_of([as_rank(profile)])))
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == 2
    assert "img" not in tags


def test_the_command_writes_it(tmp_path: Path) -> None:
    for rank, work in enumerate((USUAL, SLOW)):
        path = tmp_path / f"profile-rank{rank}.json"
        waits = 1 if work is SLOW else 31
        profile_of(work, [waits], of_rank(rank, 2)).save(path)
    page = tmp_path / "ranks.html"
    assert main(["ranks", str(tmp_path), "--format", "html", "-o", str(page)]) == 0
    assert "Rank 1 is slow: " in page.read_text()


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("scheme", in_turns(["light", "dark"], 0, 2))
def test_it_opens_and_is_easy_to_reach(opened: Open, scheme: str) -> None:
    page = opened(ranks_page(RANKS), color_scheme=scheme)
    assert page.evaluate("document.documentElement.dataset.ready") == "true"
    assert page.locator(".ranks .phases").count() == 4
    assert_accessible(page)


@pytest.mark.browser
@pytest.mark.slow
def test_a_page_of_nothing_opens_without_complaints(opened: Open) -> None:
    page = opened(profile_page(Profile()))
    assert page.evaluate("document.documentElement.dataset.ready") == "true"
