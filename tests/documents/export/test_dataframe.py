"""Rows of a profile as data frames."""

from __future__ import annotations

import csv
import sys
from io import StringIO

import pytest

from tests.build import FUNCTIONS, STEP
from torchprof_hooks.documents.build.rows import rows_table
from torchprof_hooks.documents.render.csv import csv_of
from torchprof_hooks.profiles.names import GROUPINGS, Grouping


@pytest.mark.parametrize("by", GROUPINGS)
def test_it_has_what_the_csv_has(by: Grouping) -> None:
    pytest.importorskip("pandas", reason="of the extra `test`")
    found = FUNCTIONS.to_dataframe(by)
    lines = list(csv.DictReader(StringIO(csv_of(rows_table(FUNCTIONS, by)))))
    assert list(found.columns) == list(lines[0])
    for column in found.columns:
        texts = ["" if value is None else str(value) for value in found[column]]
        assert texts == [line[column] for line in lines]
    assert found["self_ns"].sum() == FUNCTIONS.wall_ns


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    with pytest.raises(ImportError, match="needs pandas: pip install pandas"):
        STEP.to_dataframe()


def test_wrong_parameters() -> None:
    with pytest.raises(ValueError, match="by must be 'module'"):
        STEP.to_dataframe("modules")  # type: ignore[arg-type]
