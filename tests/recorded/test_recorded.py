"""Programs have the numbers that they had."""

from __future__ import annotations

import pytest
import torch

from tests.cores import NATIVE_CORE
from tests.recorded import recorded
from tests.recorded.programs import PROGRAMS
from tests.recorded.reading import facts_of
from torchprof_hooks.kernel.torch_names.tried import minor

#: Operators of torch, and the bytes that they take, are those of the version that runs.
OF_OPERATORS = pytest.mark.skipif(
    minor(torch.__version__) not in ("2.13", "2.14", "2.15"),
    reason="recorded with torch 2.13",
)


@NATIVE_CORE
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[OF_OPERATORS] * name.endswith(("_functions", "_memory"))
        )
        for name in PROGRAMS
    ],
)
def test_the_numbers_are_those_that_were_recorded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert facts_of(name, monkeypatch) == recorded()[name]
