"""Compiled code of well-known models is divided among their modules, as
benchmarks/compiled_models.py has it for more of them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.compiled import DIVIDED
from tests.cores import NATIVE_CORE
from tests.running import python

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "compiled_models.py"
#: Of the library that has it; "": of our own benchmarks.
MODELS = {
    "lstm_cell": "",
    "resnet": "",
    "llama": "transformers",
    "checkpointed_bert": "transformers",
}


@DIVIDED
@NATIVE_CORE
@pytest.mark.slow
@pytest.mark.thorough  # the first time, compiling takes a minute
@pytest.mark.parametrize("name", MODELS)
def test_kernels_of_models(name: str) -> None:
    library = MODELS[name]
    if library and find_spec(library) is None:
        pytest.skip(f"{library}, of the extra `test`, is not installed")
    done = python(str(PROGRAM), name)
    assert done.returncode == 0, done.stderr
    titles, _, values = done.stdout.splitlines()
    pairs = zip(titles.split("|")[1:-1], values.split("|")[1:-1], strict=True)
    found = {title.strip(): value.strip() for title, value in pairs}
    assert int(found["matched"]) == int(found["calls"]) > 20
    assert int(found["owned"]) > 0.9 * int(found["calls"])
    assert int(found["graphs"]) >= 2
    assert (found["foreign"], found["exact"], found["said"]) == ("0", "yes", "")
