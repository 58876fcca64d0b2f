"""What a graph break costs, as docs/compiled.md has it: the commands are run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cores import NATIVE_CORE
from tests.documents.docs_samples import GRAPH_BREAKS
from tests.running import profiled
from tests.thorough import THOROUGH

SCRIPT = str(Path(__file__).parents[2] / "examples" / "graph_breaks.py")

pytestmark = [NATIVE_CORE, pytest.mark.slow]


@pytest.mark.parametrize(
    "name", [pytest.param("whole_graph", marks=THOROUGH), "broken_graph"]
)
def test_the_tutorial(name: str) -> None:
    options = [*GRAPH_BREAKS[name].split(), "--steps=5", "--blocks=2"]
    said = profiled("--full", SCRIPT, *options, OMP_NUM_THREADS="1").err
    assert "Net [compiled]" in said
    assert ("torch.compile broke graphs " in said) is (name == "broken_graph")
