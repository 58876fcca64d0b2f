"""Programs have the numbers that they had."""

from __future__ import annotations

import pytest

from tests.cores import NATIVE_CORE
from tests.recorded import recorded
from tests.recorded.programs import PROGRAMS
from tests.recorded.reading import facts_of


@NATIVE_CORE
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_numbers_are_those_that_were_recorded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert facts_of(name, monkeypatch) == recorded()[name]
