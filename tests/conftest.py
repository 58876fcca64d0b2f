"""What tests need is loaded by the processes that run them. The one that hands them out
to others (`--numprocesses`) runs none, and does not wait for torch."""

from __future__ import annotations

import pytest

from tests.devices.cuda import planted


def pytest_configure(config: pytest.Config) -> None:
    hands_out = config.getoption("dist", "no") != "no"
    if not hands_out or hasattr(config, "workerinput"):
        config.pluginmanager.import_plugin("tests.fixtures")
        if planted.is_loaded():
            config.pluginmanager.import_plugin("tests.devices.cuda.plugin")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that take long come first: at the end, no process waits for another."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
