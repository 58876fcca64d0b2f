"""Documents say what they said when a person has read them last."""

import pytest

from tests.golden import DOCUMENTS, cases

CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_a_document_is_as_it_was_read_last(name: str) -> None:
    written = (DOCUMENTS / name).read_text(encoding="utf-8")
    assert CASES[name]() + "\n" == written, "python -m tests.golden writes it anew"


def test_there_is_a_case_for_each_document() -> None:
    assert {path.name for path in DOCUMENTS.iterdir()} == {*CASES}
