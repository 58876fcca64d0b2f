"""Takes the pictures of pages that the documentation shows, in a browser without a
screen: of the profiles in docs/samples.

    python docs/render_pages.py

The browser is the system's Chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from playwright.sync_api import sync_playwright

from torchprof_hooks.program.cli import main as run_tool

DOCS: Final = Path(__file__).parent
WIDTH: Final = 1400

#: By picture: the command that writes the page, the heading from which on it is shown
#: ("": from its top), and the height of what is shown.
PICTURES: Final = {
    "page.png": (("show", str(DOCS / "samples" / "char_lm.json")), "", 895),
    "ranks.png": (("ranks", str(DOCS / "samples" / "ranks")), "", 620),
    "memory.png": (
        ("show", str(DOCS / "samples" / "char_lm_functions.json")),
        "Memory",
        1014,
    ),
}


def take_picture(browser: Any, command: tuple[str, ...], picture: Path) -> None:
    """Write a page by a command, open it, and write its picture."""
    _, heading, height = PICTURES[picture.name]
    with TemporaryDirectory() as folder:
        page_file = Path(folder, "page.html")
        assert run_tool([*command, "--format", "html", "-o", str(page_file)]) == 0
        page = browser.new_page(viewport={"width": WIDTH, "height": height})
        page.goto(page_file.as_uri())
        page.wait_for_selector("[data-ready]", state="attached")
        if heading:
            title = page.get_by_role("heading", name=heading, exact=True)
            title.evaluate("title => title.scrollIntoView()")
        page.screenshot(path=picture)
        page.close()


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("there is no chromium: install it, or put it on the PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )
        for name, (command, *_) in PICTURES.items():
            take_picture(browser, command, DOCS / name)
        browser.close()


if __name__ == "__main__":
    main()
