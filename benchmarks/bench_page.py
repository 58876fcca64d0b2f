"""How long it takes to write the page of a profile, and until one can use it.

Targets: `to_html` of 1 000 rows takes less than 0.5 s; a page of 10 000 modules has
less than 3 MB, and answers clicks less than 2 s after a browser was sent to it.
Chromium opens it without a window, by Playwright (both of the extra `test`).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import results
from bench import rounds
from playwright.sync_api import Browser, sync_playwright

from torchprof_hooks import Profile
from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.parts import Part
from torchprof_hooks.profiles.totals import Totals

SIZES = 1_000, 10_000
ROUNDS = rounds(7)
PHASES: tuple[Phase, ...] = ("forward", "backward")
#: What the page's own program sets when it is done, and what it shows then.
READY = "document.documentElement.dataset.ready === 'true'"
HEADERS = "modules", "writing, s", "MB", "until it can be used, s", "a click, s"


def profile_of(count: int) -> Profile:
    """A model of so many modules, in blocks of a hundred."""
    infos = {"Net": ModuleInfo("Net")}
    cells: dict[CellKey, Totals] = {
        (("Net",), phase): Totals(calls=3, self_ns=1) for phase in PHASES
    }
    for number in range(count):
        block = f"Net.blocks.{number // 100}"
        name = f"{block}.layers.{number}"
        infos |= {block: ModuleInfo("Block"), name: ModuleInfo("Linear")}
        for phase in PHASES:
            for path, own_ns in ((block,), 2_345_678), ((block, name), 12_345_678):
                cells[("Net", *path), phase] = Totals(calls=3, self_ns=own_ns + number)
    return Profile((Part("loop").with_cells(cells),), infos)


def opened_s(browser: Browser, path: Path) -> tuple[float, float]:
    """Seconds until the page is ready, and then until a click has zoomed in."""
    page = browser.new_page()
    began = perf_counter()
    page.goto(path.as_uri())
    page.wait_for_function(READY)
    ready = perf_counter()
    page.locator("svg .frame").nth(1).dispatch_event("click")
    page.evaluate("() => new Promise(done => requestAnimationFrame(done))")
    clicked = perf_counter()
    page.close()
    return ready - began, clicked - ready


def main() -> None:
    figures: dict[str, dict[str, float]] = {}
    rows: list[list[results.Cell]] = []
    with sync_playwright() as running, tempfile.TemporaryDirectory() as folder:
        browser = running.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox"],
        )
        for count in SIZES:
            profile, path = profile_of(count), Path(folder, f"{count}.html")
            writing: list[float] = []
            for _ in range(ROUNDS):
                began = perf_counter()
                profile.to_html(path)
                writing.append(perf_counter() - began)
            opening = [opened_s(browser, path) for _ in range(ROUNDS)]
            found = {
                "writing_s": median(writing),
                "mb": path.stat().st_size / 1e6,
                "ready_s": median(ready for ready, _ in opening),
                "click_s": median(click for _, click in opening),
            }
            figures[str(count)] = found
            rows.append([count, *(f"{value:.2f}" for value in found.values())])
        browser.close()
    note = "Medians. A fresh tab each time, of a browser that runs already."
    table = results.Table("Pages of large models", HEADERS, rows, [note])
    results.save("page", [table], figures)


if __name__ == "__main__":
    main()
