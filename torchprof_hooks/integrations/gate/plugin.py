"""The plugin that pytest loads at each start. It imports torch only when a test asks
for the fixture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torchprof_hooks.integrations.gate.gate import PerformanceGate

_TITLE = "torchprof"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options to the command line and the configuration file."""
    group = parser.getgroup(_TITLE, "performance of training steps")
    group.addoption(
        "--torchprof-update",
        action="store_true",
        help="measure the baselines of this machine anew",
    )
    group.addoption(
        "--torchprof-strict",
        action="store_true",
        help="fail tests that have no baseline of this machine",
    )
    parser.addini(
        "torchprof_dir",
        "folder for baselines, from the root folder; by default .torchprof beside "
        "each test",
    )
    parser.addini(
        "torchprof_runs",
        "processes in which a baseline is measured, and a step that may be slower",
        default="8",
    )


@pytest.fixture
def torchprof(request: pytest.FixtureRequest) -> PerformanceGate:
    """Fails the test if a step became slower: torchprof.check(step)."""
    from torchprof_hooks.integrations.gate.gate import PerformanceGate

    return PerformanceGate(request.node)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which baselines were written, also by other processes of pytest-xdist."""
    lines = [
        value.replace(f"{Path.cwd()}/", "")
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == _TITLE
    ]
    if lines:
        terminalreporter.section(_TITLE)
        for line in lines:
            terminalreporter.write_line(line)
