"""Profiles in speedscope itself, opened in Chromium."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.documents.test_page_browser import browser
from tests.helpers import FUNCTIONS, STEP
from torchprof_hooks import Profile
from torchprof_hooks.documents.export.stacks import render_speedscope

__all__ = ["browser"]  # a fixture

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: Where npm puts it, with what the page of a profile is bundled with.
SITE = Path(__file__).parents[3] / "page/node_modules/speedscope/dist/release"


def opened(browser: Any, profile: Profile, folder: Path) -> Any:
    """The viewer, in which somebody has chosen the file of a profile."""
    if not SITE.is_dir():
        pytest.skip("needs speedscope: `npm ci` in page/")
    file = folder / "profile.speedscope.json"
    file.write_text(render_speedscope(profile))
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto((SITE / "index.html").as_uri())
    page.set_input_files("input[type=file]", file)
    page.get_by_text(re.compile(r"^forward \(1/")).wait_for()
    return page


def symbols(page: Any) -> dict[str, tuple[str, str]]:
    """Total and own time of what the table of the "sandwich" lists."""
    page.get_by_text("Sandwich").click()
    page.get_by_text("Symbol Name").wait_for()
    rows = page.locator("table tr").evaluate_all(
        "all => all.map(row => [...row.cells].map(cell => cell.textContent.trim()))"
    )
    # The list of profiles is a table, too, but without shares.
    shares = [row for row in rows if len(row) == 3 and "%" in row[0]]
    return {
        name: (total.partition(" ")[0], own.partition(" ")[0])
        for total, own, name in shares
    }


def test_it_shows_the_own_times_of_a_phase(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, STEP, tmp_path)
    assert page.get_by_text("forward (1/4)").is_visible()
    assert symbols(page) == {
        "Net": ("60.00ns", "10.00ns"),
        "Net.a": ("30.00ns", "30.00ns"),
        "Net.b": ("20.00ns", "5.00ns"),
        "Net.b.a": ("15.00ns", "15.00ns"),
    }
    page.close()


def test_functions_are_symbols_too(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, FUNCTIONS, tmp_path)
    assert symbols(page)["tanh(8x4)"] == ("11.00ns", "5.00ns")
    page.close()
