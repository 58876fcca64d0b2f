"""Record all programs again, or those that are named."""

import sys

import pytest

from tests.recorded import NUMBERS, record, recorded
from tests.recorded.programs import PROGRAMS
from tests.recorded.reading import facts_of

known = recorded() if NUMBERS.exists() and sys.argv[1:] else {}
for name in sys.argv[1:] or PROGRAMS:
    with pytest.MonkeyPatch.context() as patch:
        known[name] = facts_of(name, patch)
record(known)
