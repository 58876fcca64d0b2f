"""Golden documents: what reports say, word by word, for stored profiles.

``python -m tests.golden`` writes them anew into ``tests/golden/documents``; a person
reads the diff. A case is a function without arguments in ``tests/golden/cases``, listed
in the `CASES` of its module by the name of its file.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

from torchprof_hooks.profile_type import Profile

_HERE: Final = Path(__file__).parent
DOCUMENTS: Final = _HERE / "documents"
SAMPLES: Final = _HERE.parent.parent / "docs" / "samples"


@cache
def sample(name: str) -> Profile:
    """A stored profile: "char_lm" is ``docs/samples/char_lm.json``."""
    return Profile.load(SAMPLES / f"{name}.json")


def cases() -> Mapping[str, Callable[[], str]]:
    """All golden documents, by the names of their files."""
    found: dict[str, Callable[[], str]] = {}
    for module in pkgutil.iter_modules([str(_HERE / "cases")]):
        found |= import_module(f"tests.golden.cases.{module.name}").CASES
    return found
