"""Pages as a person uses them, in Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.documents.pages import MS, NAMES, document, rows, tree
from tests.documents.test_page import HOSTILE
from torchprof_hooks.documents.document import Column
from torchprof_hooks.documents.render.html import page_of

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


def frames(page: Any) -> dict[str, float]:
    """Names of the frames in the picture, and their widths in per cent."""
    drawn = page.locator("svg.icicle svg.frame").evaluate_all(
        "all => all.map(f => [f.getAttribute('aria-label').split(', ')[0],"
        " parseFloat(f.getAttribute('width'))])"
    )
    return dict(drawn)


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 500])
def test_nothing_is_hard_to_reach(opened: Any, scheme: Any, width: Any) -> None:
    page = opened(page_of(document()), width, color_scheme=scheme)
    assert_accessible(page)
    # Tables scroll in their places, and the page does not.
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_names_stay_in_sight_where_a_table_scrolls(opened: Any) -> None:
    page = opened(page_of(document()), 300)
    place = page.locator('[data-tables^="tree"] .scroll')
    place.evaluate("place => place.scrollLeft = 50")
    assert place.evaluate("place => place.scrollLeft") == 50
    left = place.bounding_box()["x"]
    for name in ("module", "a: Linear"):
        box = place.locator("th", has_text=name).first.bounding_box()
        assert box["x"] == pytest.approx(left)
    for tables, is_wide in {"tree": True, "rows": True, "steps": False}.items():
        name = page.locator(f'[data-tables^="{tables}"] tbody th').first
        assert (name.bounding_box()["width"] > 150) == is_wide


def test_clicking_zooms_and_the_button_zooms_out(opened: Any) -> None:
    page = opened(page_of(document()))
    before = frames(page)
    assert before["Net"] == pytest.approx(100 * 140 / 160, abs=0.001)
    assert "everything" not in before
    page.locator('[aria-label^="Net.b, "] > rect.body').click()
    assert frames(page)["Net.b"] == 100
    assert "Net.a" not in frames(page)
    assert page.locator("svg.icicle + .details h3").text_content() == "Net.b"
    page.get_by_role("button", name="Reset zoom").click()
    assert frames(page) == before


def test_hovering_tells_all_numbers(opened: Any) -> None:
    page = opened(page_of(document()))
    assert "Net.a\n" in page.locator("svg.icicle + .details").inner_text()
    height = page.evaluate("document.documentElement.scrollHeight")
    page.locator('[aria-label^="Net.b.a"] > rect.body').hover()
    assert page.evaluate("document.documentElement.scrollHeight") == height
    text = page.locator("svg.icicle + .details").inner_text()
    for wanted in ("Net.b.a", "Linear", "49.00ms", "30.6 %", "512.00B"):
        assert wanted in text


def test_searching_finds(opened: Any) -> None:
    page = opened(page_of(document()))
    search = page.get_by_label("Search the picture")
    search.fill(".A")
    # 70, and the one in b: 49, of 160
    assert page.locator("output").text_content() == "2 found, 74.4 %"
    assert page.locator("svg.found").count() == 2
    search.press("Enter")
    assert frames(page)["Net.a"] == 100
    search.fill("nothing like it")
    assert page.locator("output").text_content() == "0 found, 0.0 %"


def test_widths_are_those_of_the_column(opened: Any) -> None:
    page = opened(page_of(document()))
    page.get_by_role("button", name="retained", exact=True).click()
    assert frames(page)["Net.a"] == pytest.approx(75, abs=0.001)
    assert page.locator('[aria-label^="Net.a, "]').get_attribute("class") == (
        "frame heat5"
    )
    page.get_by_role("button", name="time", exact=True).click()
    assert frames(page)["Net.a"] == pytest.approx(100 * 70 / 160, abs=0.001)


def test_names_are_whole_or_left_out(opened: Any) -> None:
    page = opened(page_of(document()))
    texts = page.locator("svg.frame text").all_text_contents()
    wanted = {"Net  87.5 %", "a: Linear  43.8 %", "a: Linear  30.6 %"}
    assert wanted <= {*texts}
    page.set_viewport_size({"width": 340, "height": 900})
    page.wait_for_function("document.querySelector('svg.icicle').clientWidth < 340")
    narrow = opened(page_of(document()), 340)
    short = narrow.locator("svg.frame text").all_text_contents()
    assert page.locator("svg.frame text").all_text_contents() == short
    whole = {"", "Net", "a", "b", "a: Linear", "b: Block", "(outside modules)"}
    for text in short:
        assert text.partition("  ")[0] in whole


def test_the_keyboard_does_it_all(opened: Any) -> None:
    page = opened(page_of(document()))
    focused = "document.activeElement.getAttribute('aria-label')"
    page.locator("svg.icicle svg.frame").first.focus()
    page.keyboard.press("Home")
    assert page.evaluate(focused).startswith("Net, ")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused).startswith("Net.a, ")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused).startswith("Net.b, ")
    page.keyboard.press("Enter")
    assert frames(page)["Net.b"] == 100
    page.keyboard.press("Escape")
    assert frames(page)["Net.b"] < 100


# Steps over time


def test_bars_are_as_high_as_steps_took(opened: Any) -> None:
    """Ten times the median step at most; the room of each is by its steps."""
    page = opened(page_of(document()))

    def sizes(bars: str) -> list[list[float]]:
        found: list[list[float]] = page.locator(f"svg.steps {bars}").evaluate_all(
            "all => all.map(bar => [bar.getBBox().width, bar.getBBox().height])"
        )
        return found

    longest, mean = sizes(".longest"), sizes(".mean")
    heights = [height / 180 for _, height in longest]
    assert heights == pytest.approx([0.1, 1, 0.1, 0.3, 0.1], abs=0.002)
    assert [height / 180 for _, height in mean] == pytest.approx([0.15, 0.1], abs=0.002)
    widths = [width + 1 for width, _ in longest]  # with the gap
    assert widths == pytest.approx([widths[0] * n for n in (1, 1, 1, 4, 4)], abs=1)
    assert page.locator("svg.steps .longest.slow").count() == 2
    assert page.locator("svg.steps .cut").count() == 1


def test_a_step_is_told_by_pointer_and_by_keys(opened: Any) -> None:
    page = opened(page_of(document()))
    steps = page.get_by_role("slider", name="Steps over time")
    panel = page.locator("svg.steps + .details")
    told = [line for line in panel.inner_text().split("\n") if line]
    assert told == ["step 3", "400.00ms, slow", "step 3: data loading"]
    steps.hover(position={"x": steps.bounding_box()["width"] - 30, "y": 100})
    assert "steps 9 to 12" in panel.inner_text()
    assert "10.00ms on average, the longest 10.00ms" in panel.inner_text()
    page.mouse.move(0, 0)
    assert "step 3" in panel.inner_text()
    steps.focus()
    for key, wanted in {
        "ArrowRight": "step 4: 10.00ms",
        "PageUp": "steps 5 to 8: 15.00ms on average, the longest 30.00ms, slow",
        "End": "steps 9 to 12",
        "PageDown": "steps 5 to 8",
        "Home": "step 2",
        "Escape": "step 3: 400.00ms, slow; step 3: data loading",
    }.items():
        page.keyboard.press(key)
        assert steps.get_attribute("aria-valuetext").startswith(wanted)


# The course of memory


def texts_of(page: Any, selector: str) -> list[str]:
    found: list[str] = page.locator(f"svg.areas {selector}").all_text_contents()
    return found


def test_areas_are_as_high_as_bytes(opened: Any) -> None:
    page = opened(page_of(document()))
    heights = page.locator("svg.areas path").evaluate_all(
        "all => all.map(path => [path.getAttribute('class'), path.getBBox().height])"
    )
    # Of 5 MB at the peak, from the lowest area on.
    assert [name for name, _ in heights] == [
        *("k-parameters", "k-activations", "k-temporary")
    ]
    assert [height / 280 for _, height in heights[:2]] == pytest.approx([0.4, 0.6])
    legend = page.locator("ul.legend:has(+ svg.areas) li").all_text_contents()
    assert legend == ["temporary", "activations", "parameters"]
    assert "5MB" in texts_of(page, "text")


@pytest.mark.parametrize(
    ("width", "told"),
    [
        (1400, "Peak 5.00MB: Net.b.a: linear(8x4, 4x4)"),
        (400, "Peak 5.00MB: Net.b.a: linear"),
        (260, "Peak 5.00MB"),
    ],
)
def test_the_peak_is_told_where_there_is_room(
    opened: Any, width: Any, told: Any
) -> None:
    page = opened(page_of(document()), width)
    assert texts_of(page, "text.peak") == [told]
    panel = page.locator("svg.areas + .details")
    assert "20.00ms after the step began: 5.00MB in use, the peak" in panel.inner_text()


@pytest.mark.parametrize("width", [1400, 360])
def test_all_phases_are_named_and_no_name_covers_another(
    opened: Any, width: Any
) -> None:
    page = opened(page_of(document()), width)
    names = ("outside modules", "forward", "backward", "optimizers")
    assert {*names} <= {*texts_of(page, "text")}
    boxes = page.locator("svg.areas text").evaluate_all(
        "all => all.map(text => { const { left, right, top, bottom } ="
        " text.getBoundingClientRect(); return [left, right, top, bottom]; })"
    )
    for number, (left, right, top, bottom) in enumerate(boxes):
        assert left >= 0
        assert right <= width
        for other in boxes[:number]:
            assert (
                right <= other[0]
                or left >= other[1]
                or bottom <= other[2]
                or top >= other[3]
            )


def test_pointing_at_a_moment_tells_what_is_in_use(opened: Any) -> None:
    page = opened(page_of(document()))
    areas, panel = page.locator("svg.areas"), page.locator("svg.areas + .details")
    width = areas.bounding_box()["width"]
    areas.hover(position={"x": 0.6 * width, "y": 150})
    wanted = ["Net.b.a: linear(8x4, 4x4)", "backward, 40.00ms", "4.00MB in use"]
    wanted += ["temporary\n1.00MB", "activations\n1.00MB", "parameters\n2.00MB"]
    for text in wanted:
        assert text in panel.inner_text()
    page.mouse.move(0, 0)
    assert "5.00MB in use, the peak" in panel.inner_text()


def test_keys_go_from_moment_to_moment(opened: Any) -> None:
    page = opened(page_of(document()))
    areas = page.get_by_role("slider", name="Memory in use during one step")
    areas.focus()
    for key, wanted in {
        "ArrowLeft": "Net.a: linear(8x4, 4x4), forward, 10.00ms after the step began, "
        "4.00MB in use, temporary 1.00MB, activations 1.00MB, parameters 2.00MB",
        "Home": "(outside modules), outside modules, 0.00ns",
        "PageUp": "(optimizer) SGD, optimizers, 79.00ms",
        "ArrowRight": "(optimizer) SGD",
        "Escape": "Net.b.a: linear(8x4, 4x4), forward, 20.00ms",
    }.items():
        page.keyboard.press(key)
        assert areas.get_attribute("aria-valuetext").startswith(wanted)


def test_moments_are_a_table_on_demand(opened: Any) -> None:
    page = opened(page_of(document()))
    place = page.locator("[data-tables=memory_of_step]")
    assert not place.locator("table").is_visible()
    place.get_by_text("As a table").click()
    assert place.locator("table").is_visible()
    assert cells(page, "memory_of_step", 2)[-2:] == ["backward", "optimizers"]


def test_areas_fit_when_the_window_changes(opened: Any) -> None:
    page = opened(page_of(document()))
    page.set_viewport_size({"width": 500, "height": 900})
    page.wait_for_selector('svg.areas[viewBox^="0 0 4"]')
    assert page.evaluate("document.documentElement.scrollWidth") <= 500


def test_sorting_sorts_and_a_tree_shows_full_names_then(opened: Any) -> None:
    page = opened(page_of(document()))
    assert [text.strip() for text in cells(page, "tree")][1:3] == [
        "a: Linear",
        "b: Block",
    ]
    place = page.locator('[data-tables^="tree"]')
    place.locator("th").get_by_role("button", name="self", exact=True).click()
    assert cells(page, "tree")[:2] == ["Net.a", "Net.b.a"]
    place.get_by_role("button", name="module", exact=True).click()
    assert cells(page, "tree") == sorted(NAMES, key=str.lower)
    assert place.locator('th[aria-sort="ascending"]').inner_text().startswith("module")


def test_filtering_leaves_what_is_wanted_also_in_another_table(opened: Any) -> None:
    page = opened(page_of(document()))
    place = page.locator('[data-tables^="rows"]')
    place.get_by_label("Filter the table").fill("RELU")
    assert cells(page, "rows", 2) == ["ReLU", "ReLU"]
    place.get_by_role("button", name="Class", exact=True).click()
    assert {*cells(page, "rows", 2)} == {"ReLU"}
    assert "125 of 250 rows" in place.inner_text()


def test_more_rows_are_shown_on_demand(opened: Any) -> None:
    page = opened(page_of(document(rows(1000))))
    assert len(cells(page, "rows")) == 25
    page.get_by_role("button", name="Show more").click()
    assert len(cells(page, "rows")) == 525


def test_layers_that_are_alike_share_a_line_until_one_asks(opened: Any) -> None:
    """All but one that has another colour."""
    labels = ("Net", *(f"{n}: Block" for n in range(6)), "linear(2x3)", "linear(4x3)")
    blocks = replace(
        tree(),
        labels=labels,
        names=labels,
        depths=(0, *(1,) * 6, 2, 0),
        tones=("heat0", *("heat3",) * 3, "heat5", *("heat3",) * 2, "heat0", "heat0"),
        columns=[
            Column("self", "ns", [n * MS for n in range(9)], "self_ns"),
            Column("own %", "share", [n / 36 for n in range(9)], "self_share"),
            Column("%", "share", [0.5] * 9, "relative_change"),
        ],
    )
    page = opened(page_of(document(blocks)))
    shown = ["Net", "0: Block", "4 more *: Block", "3: Block", "linear(4x3)"]
    assert [text.strip() for text in cells(page, "tree")] == shown
    # The hottest, though others have more of their own.
    assert page.locator("svg.icicle + .details h3").text_content() == "3: Block"
    alike = page.get_by_role("button", name="4 more *: Block")
    line = page.locator("tr:has(.alike)")
    assert line.inner_text().split("\t")[1:] == ["16.00ms", "44.4 %", ""]
    assert alike.get_attribute("aria-expanded") == "false"
    alike.focus()
    page.keyboard.press("Enter")
    assert len(cells(page, "tree")) == len(labels) + 1
    page.keyboard.press("Enter")
    assert len(cells(page, "tree")) == len(shown)
    page.get_by_role("button", name="module", exact=True).click()
    assert cells(page, "tree") == sorted(labels, key=str.lower)


def test_a_row_leads_to_its_frame(opened: Any) -> None:
    page = opened(page_of(document()))
    place = page.locator('[data-tables^="tree"] table')
    place.get_by_role("button", name="b: Block").click()
    assert frames(page)["Net.b"] == 100


def test_without_a_script_it_can_be_read(opened: Any) -> None:
    page = opened(page_of(document()), java_script_enabled=False)
    assert page.get_by_role("cell", name="70.00ms").first.is_visible()
    assert page.locator(".phases").first.is_visible()


@pytest.mark.parametrize("name", HOSTILE[:4], ids=str)
def test_hostile_names_run_nothing(opened: Any, name: Any) -> None:
    page = opened(page_of(document(tree((name, *NAMES[1:])), title=name)))
    assert page.evaluate("document.documentElement.dataset.ready") == "true"
    assert page.locator("script").count() == 2
    assert page.locator("img").count() == 0


def test_ten_thousand_frames_can_be_used(opened: Any) -> None:
    page = opened(page_of(document(rows(10_000))))
    page.get_by_label("Filter the table").fill("layers.9999")
    assert cells(page, "rows") == ["Net.layers.9999"]
