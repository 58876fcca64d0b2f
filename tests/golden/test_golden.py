"""Documents say what they said when a person has read them last."""

import re

import pytest

from tests.golden import DOCUMENTS, cases

CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_a_document_is_as_it_was_read_last(name: str) -> None:
    written = (DOCUMENTS / name).read_text(encoding="utf-8")
    assert CASES[name]() + "\n" == written, "python -m tests.golden writes it anew"


#: What reports said once where they now have the words of the glossary.
REPLACED = re.compile(
    r"all else|looked into|\(gross\)|neither;|\(profiler\)|outside of modules|"
    "measuring itself|unseen|unsampled|communicates least"
)


@pytest.mark.parametrize("name", CASES)
def test_words_that_were_replaced_do_not_come_back(name: str) -> None:
    assert not REPLACED.search((DOCUMENTS / name).read_text(encoding="utf-8"))


def test_there_is_a_case_for_each_document() -> None:
    assert {path.name for path in DOCUMENTS.iterdir()} == {*CASES}
