"""What tests are called is the same in every process: they can be run side by side."""

from __future__ import annotations

import pytest
import torch

from tests.fixtures import with_addresses


def test_ids_of_tests_hold_no_addresses(request: pytest.FixtureRequest) -> None:
    items = request.session.items

    assert with_addresses(item.nodeid for item in items) == []
    assert with_addresses([f"t[{torch.relu}]", "t[2x0x3]"]) == [f"t[{torch.relu}]"]
