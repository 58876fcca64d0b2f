"""Pages as a person uses them, in Chromium: nothing is hard to reach, and what a person
can do with the picture, the tables and the curves works."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documents.pages import NAMES, document, rows, tree
from tests.documents.test_page import HOSTILE
from tests.golden import sample
from torchprof_hooks.documents.render.html import page_of
from torchprof_hooks.documents.report import page as page_report

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Open = Callable[..., Any]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright, of the extra `test`, is missing"
    )
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a page, and complains at the end if it has complained, or asked for
    anything besides itself."""
    complaints: list[str] = []
    requests: list[str] = []
    contexts: list[Any] = []
    file = tmp_path / "page.html"

    def open_page(text: str, width: int = 1400, **options: Any) -> Any:
        file.write_text(text)
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert {*requests} <= {file.as_uri()}


def frames(page: Any) -> list[str]:
    """Names of the frames in the picture."""
    drawn: list[str] = page.locator("svg.icicle svg.frame").evaluate_all(
        "all => all.map(f => f.getAttribute('aria-label').split(', ')[0])"
    )
    return drawn


def cells(page: Any, tables: str, column: int = 0) -> list[str]:
    """What stands in a column of the table that is shown of some."""
    texts: list[str] = page.locator(f'[data-tables^="{tables}"] table.rows').evaluate(
        "(table, at) => [...table.tBodies[0].rows].map(row => row.cells[at].innerText)",
        column,
    )
    return texts


def assert_accessible(page: Any) -> None:
    """Nothing that axe-core calls serious."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="of the extra `test`"
    )
    # The policy of the page lets no script in, so axe is run by the debugger.
    script = Path(axe.__file__).with_name("axe.min.js").read_text()
    page.evaluate(f"() => {{ {script} }}")
    found = page.evaluate("async () => (await axe.run()).violations")
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in serious] == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 500)])
def test_nothing_is_hard_to_reach(opened: Any, scheme: Any, width: Any) -> None:
    page = opened(page_of(document()), width, color_scheme=scheme)
    assert_accessible(page)
    # Tables scroll in their places, and the page does not.
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_picture_zooms_tells_and_finds(opened: Any) -> None:
    page = opened(page_of(document()))
    before = frames(page)
    page.locator('[aria-label^="Net.b.a"] > rect.body').hover()
    details = page.locator("svg.icicle + .details")
    for wanted in ("Net.b.a", "Linear", "49.00ms", "30.6 %", "512.00B"):
        assert wanted in details.inner_text()
    page.locator('[aria-label^="Net.b, "] > rect.body').click()
    assert "Net.a" not in frames(page)
    page.get_by_role("button", name="Reset zoom").click()
    assert frames(page) == before
    search = page.get_by_label("Search the picture")
    search.fill(".A")
    # 70, and the one in b: 49, of 160
    assert page.locator("output").text_content() == "2 found, 74.4 %"
    focused = "document.activeElement.getAttribute('aria-label')"
    page.locator("svg.icicle svg.frame").first.focus()
    for key, name in {
        "Home": "Net",
        "ArrowDown": "Net.a",
        "ArrowRight": "Net.b",
    }.items():
        page.keyboard.press(key)
        assert page.evaluate(focused).startswith(f"{name}, ")
    page.keyboard.press("Enter")
    assert "Net.a" not in frames(page)


def test_tables_are_sorted_filtered_and_lead_to_the_picture(opened: Any) -> None:
    page = opened(page_of(document()))
    place = page.locator('[data-tables^="tree"]')
    place.locator("table").get_by_role("button", name="b: Block").click()
    assert "Net.a" not in frames(page)
    place.locator("th").get_by_role("button", name="self", exact=True).click()
    assert cells(page, "tree")[:2] == ["Net.a", "Net.b.a"]
    place.get_by_role("button", name="module", exact=True).click()
    assert cells(page, "tree") == sorted(NAMES, key=str.lower)
    place = page.locator('[data-tables^="rows"]')
    place.get_by_label("Filter the table").fill("RELU")
    assert cells(page, "rows", 2) == ["ReLU", "ReLU"]
    place.get_by_role("button", name="Class", exact=True).click()
    assert {*cells(page, "rows", 2)} == {"ReLU"}
    assert "125 of 250 rows" in place.inner_text()
    page = opened(page_of(document(rows(1000))))
    assert len(cells(page, "rows")) == 25
    page.get_by_role("button", name="Show more").click()
    assert len(cells(page, "rows")) == 525


def test_of_a_stored_profile_nothing_is_cut_or_added_up_that_is_no_sum(
    opened: Any,
) -> None:
    page = opened(page_report(sample("char_lm_functions")))
    panels = page.locator("svg.icicle + .details")
    cut = "all => all.map(each => each.scrollHeight - each.clientHeight)"
    assert {*panels.evaluate_all(cut)} == {0}
    page.locator('[aria-label^="CharLM, "] > rect.body').first.hover()
    assert {*panels.evaluate_all(cut)} == {0}
    for table, wanted in {
        "flops": ["1.64G", "2.62G", "", "4.26G", "", ""],
        "memory": ["27.13MB", "19.48MB", "35.32MB", "", "", "2.64GB"],
    }.items():
        row = page.locator(f'[data-tables="{table}"] tr:has(button.alike)')
        texts = row.evaluate("row => [...row.cells].map(cell => cell.innerText)")
        assert texts == ["3 more *: Block", *wanted]


def test_curves_are_told_by_keys(opened: Any) -> None:
    page = opened(page_of(document()))
    steps = page.get_by_role("slider", name="Steps over time")
    memory = page.get_by_role("slider", name="Memory in use during one step")
    for curve, keys in (
        (
            steps,
            {
                "ArrowRight": "step 4: 10.00ms",
                "End": "steps 9 to 12",
                "Escape": "step 3: 400.00ms, slow; step 3: data loading",
            },
        ),
        (
            memory,
            {
                "ArrowLeft": "Net.a: linear(8x4, 4x4), forward, 10.00ms after the step",
                "PageUp": "(optimizer) SGD, optimizers, 79.00ms",
                "Escape": "Net.b.a: linear(8x4, 4x4), forward, 20.00ms",
            },
        ),
    ):
        curve.focus()
        for key, wanted in keys.items():
            page.keyboard.press(key)
            assert curve.get_attribute("aria-valuetext").startswith(wanted)


def test_without_a_script_it_can_be_read(opened: Any) -> None:
    page = opened(page_of(document()), java_script_enabled=False)
    assert page.get_by_role("cell", name="70.00ms").first.is_visible()


def test_hostile_names_run_nothing(opened: Any) -> None:
    for name in HOSTILE[:4]:
        page = opened(page_of(document(tree((name, *NAMES[1:])), title=name)))
        assert page.evaluate("document.documentElement.dataset.ready") == "true"
        assert page.locator("script").count() == 2
        assert page.locator("img").count() == 0
