"""Pages as a person uses them, in Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import FUNCTIONS, STEP, hand_built, own
from tests.program.test_file_tools import slowed
from tests.reports.html.real_profiles import NAMES, real_page, real_profile
from tests.reports.html.test_page import HOSTILE, hostile_profile
from tests.thorough import THOROUGH
from torchprof_hooks.profiles.compare import compare
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.reports.html.comparison import comparison_page
from torchprof_hooks.reports.html.page import profile_page
from torchprof_hooks.reports.units import best_time

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

    def open_page(text: str, **options: Any) -> Any:
        file.write_text(text)
        context = browser.new_context(
            viewport={"width": 1400, "height": 900}, **options
        )
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
    """Names with classes of the frames in the picture, and their widths in per cent."""
    drawn = page.locator("#icicle svg.frame").evaluate_all(
        "all => all.map(f => [f.getAttribute('aria-label').split(', ')[0],"
        " parseFloat(f.getAttribute('width'))])"
    )
    return dict(drawn)


def cells(page: Any, column: str) -> list[str]:
    """What stands in a column of the table."""
    texts: list[str] = page.locator("#rows table").evaluate(
        """(table, wanted) => {
          const heads = [...table.tHead.rows[0].cells].map(c => c.textContent);
          const at = heads.indexOf(wanted);
          return [...table.tBodies[0].rows].map(row => row.cells[at].textContent);
        }""",
        column,
    )
    return texts


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "char_lm" else THOROUGH) for name in NAMES],
)
def test_pages_of_real_models(opened: Open, name: str) -> None:
    profile = real_profile(name).loop.corrected()
    page = opened(real_page(name))
    rows = sorted(profile.rows(), key=lambda row: -row.self_ns)[:100]
    for text, row in zip(cells(page, "own"), rows, strict=True):
        # The script rounds halves up, Python to the even digit.
        texts = {best_time(row.self_ns), best_time(row.self_ns * (1 + 1e-15))}
        assert text in (texts if row.self_ns else {""})
    root = next(node for node in profile.tree().children if node.kind == "module")
    label = next(label for label in frames(page) if label.startswith(root.name))
    share = 100 * root.cumulative_ns / profile.wall_ns
    assert frames(page)[label] == pytest.approx(share, abs=0.001)
    # By its rectangle: the box of a narrow frame reaches as far as its clipped text.
    page.locator(f'[aria-label^="{label}, "] > rect.body').click()
    assert frames(page)[label] == 100
    if len(profile.modules) < 1000:  # more of the same takes ten seconds
        assert_accessible(page)


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
def test_nothing_is_hard_to_reach(opened: Open, scheme: str) -> None:
    assert_accessible(opened(profile_page(FUNCTIONS), color_scheme=scheme))


def test_clicking_zooms_and_the_button_zooms_out(opened: Open) -> None:
    page = opened(profile_page(STEP))
    before = frames(page)
    assert before["Net"] == pytest.approx(100 * 141 / 168, abs=0.001)
    page.locator('[aria-label^="Net.b (Block)"]').click()
    assert frames(page)["Net.b (Block)"] == 100
    assert "Net.a (Linear)" not in frames(page)
    assert page.locator(".details h3").text_content() == "Net.b"
    page.get_by_role("button", name="Reset zoom").click()
    assert frames(page) == before


def test_hovering_tells_all_numbers(opened: Open) -> None:
    page = opened(profile_page(STEP))
    page.locator('[aria-label^="Net.b.a"]').hover()
    text = page.locator(".details").inner_text()
    assert "Net.b.a" in text
    assert "49.00ns, 29.2 % of the time; own 49.00ns" in text
    numbers = page.locator(".details table tr").all_inner_texts()
    assert "calls\t4\t4\t4" in numbers
    assert "own\t15.00ns\t20.00ns\t14.00ns" in numbers


def test_operations_with_those_of_inner_calls(opened: Open) -> None:
    cells_of_fc: dict[tuple[str, Phase], Totals] = {
        ("Net", "forward"): own(10),
        ("Net > Net.fc", "forward"): own(10),
        ("Net > Net.fc > linear(8x4)", "forward"): replace(own(10), flops=1000),
        ("Net > Net.fc > linear(8x4)", "backward"): replace(own(10), flops=2000),
    }
    page = opened(profile_page(hand_built(cells_of_fc, {"Net": "Net", "Net.fc": "fc"})))
    page.locator('[aria-label^="Net,"]').hover()
    numbers = page.locator(".details table tr").all_inner_texts()
    assert "FLOPs, with inner calls\t1.00 kFLOP\t2.00 kFLOP" in numbers
    assert not any(line.startswith("FLOPs, own") for line in numbers)
    assert sorted(cells(page, "FLOPs")) == ["3.00 kFLOP", "3.00 kFLOP"]
    assert sorted(cells(page, "own FLOPs")) == ["", "3.00 kFLOP"]


def test_searching_finds(opened: Open) -> None:
    page = opened(profile_page(STEP))
    search = page.get_by_label("Search the picture")
    search.fill("linear")
    # a: 70, and the one in the block: 49, of 168.
    assert page.locator("output").text_content() == "2 found, 70.8 %"
    assert page.locator("svg.found").count() == 2
    search.press("Enter")
    assert frames(page)["Net.a (Linear)"] == 100
    search.fill("nothing like it")
    assert page.locator("output").text_content() == "0 found, 0.0 %"


def test_widths_are_those_of_the_phase(opened: Open) -> None:
    page = opened(profile_page(STEP))
    page.get_by_role("button", name="Backward", exact=True).click()
    # Net: 1 + 40 + 20 of these and the 4 outside.
    assert frames(page)["Net"] == pytest.approx(100 * 61 / 65, abs=0.001)
    page.get_by_role("button", name="Recompute", exact=True).click()
    assert frames(page)["Net"] == 100


def test_functions_can_be_in_the_picture(opened: Open) -> None:
    page = opened(profile_page(FUNCTIONS))
    assert not any(name.startswith("tanh") for name in frames(page))
    page.get_by_role("button", name="With functions").click()
    share = 100 * 26 / FUNCTIONS.wall_ns  # 5 + 15 + 6 for the mul in it
    assert frames(page)["tanh(8x4)"] == pytest.approx(share, abs=0.001)


def test_the_keyboard_does_it_all(opened: Open) -> None:
    page = opened(profile_page(STEP))
    focused = "document.activeElement.getAttribute('aria-label')"
    page.locator("#icicle svg.frame").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused).startswith("Net, ")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused).startswith("Net.a (Linear), 41.7")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused).startswith("Net.b (Block), ")
    page.keyboard.press("Enter")
    assert frames(page)["Net.b (Block)"] == 100
    page.keyboard.press("Escape")
    assert frames(page)["Net.b (Block)"] < 100


def test_sorting_sorts(opened: Open) -> None:
    page = opened(profile_page(STEP))
    by_own = sorted(STEP.corrected().rows(), key=lambda row: -row.self_ns)
    assert cells(page, "module") == [row.name for row in by_own]
    page.get_by_role("button", name="module", exact=True).click()
    assert cells(page, "module") == sorted(cells(page, "module"), key=str.lower)
    page.get_by_role("button", name="module", exact=True).click()
    assert cells(page, "module")[-1].startswith("(")
    page.get_by_role("button", name="total").click()
    assert cells(page, "module")[0] == "Net"
    sorted_by = page.locator('th[aria-sort="descending"]')
    assert sorted_by.text_content() == "total"


def test_filtering_leaves_what_is_wanted(opened: Open) -> None:
    page = opened(profile_page(FUNCTIONS))
    page.get_by_label("Filter the table").fill("LINEAR")
    assert cells(page, "class") == ["Linear", "Linear"]
    page.get_by_role("button", name="Calls", exact=True).click()
    expected = {r.name for r in FUNCTIONS.rows("call") if "linear" in r.name.lower()}
    assert set(cells(page, "call")) >= expected


def test_more_rows_are_shown_on_demand(opened: Open) -> None:
    page = opened(real_page("thousand"))
    assert len(cells(page, "module")) == 100
    page.get_by_role("button", name="Show more").click()
    assert len(cells(page, "module")) == 600


def test_a_row_leads_to_its_frame(opened: Open) -> None:
    page = opened(profile_page(STEP))
    page.locator("#rows").get_by_role("button", name="Net.b.a").click()
    assert frames(page)["Net.b.a (Linear)"] == 100


def test_without_a_script_it_can_be_read(opened: Open) -> None:
    page = opened(profile_page(STEP), java_script_enabled=False)
    assert page.get_by_role("cell", name="70.00ns").first.is_visible()
    assert page.locator("#icicle svg.frame").count() == 9
    assert page.locator("#icicle svg.frame text").first.is_visible()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, id=str(number), marks=() if number < 3 else THOROUGH)
        for number, each in enumerate(HOSTILE)
    ],
)
def test_hostile_names_run_nothing(opened: Open, name: str) -> None:
    page = opened(profile_page(hostile_profile(name)))
    assert page.evaluate("document.documentElement.dataset.ready") == "true"
    assert page.locator("script").count() == 2
    assert page.locator("img").count() == 0
    assert len(cells(page, "module")) == 2


def test_what_became_slower_is_red_and_faster_blue(opened: Open) -> None:
    old, new = slowed(1.0), slowed(1.5, seed=1)
    page = opened(comparison_page(compare(old, new)))
    slower = page.locator("svg.slower2").evaluate_all(
        "all => all.map(f => f.getAttribute('aria-label').split(', ')[0])"
    )
    found = {change.name for change in compare(old, new).slower}
    assert found <= {label.partition(" ")[0] for label in slower} | {"Net"}
    assert cells(page, "verdict").count("slower") == len(compare(old, new).slower)
    back = opened(comparison_page(compare(new, old)))
    assert back.locator("svg.faster2").count() > 0
    assert back.locator("svg.slower2").count() == 0
