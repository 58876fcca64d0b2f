"""The rows of a profile as a data frame of pandas."""

from __future__ import annotations

from typing import Any

from torchprof_hooks.documents.build.rows import rows_table
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Grouping


def dataframe(profile: ProfileData, by: Grouping) -> Any:
    """See `Profile.to_dataframe`."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_dataframe needs pandas: pip install pandas") from error
    table = rows_table(profile, by)
    columns: dict[str, list[Any]] = {"name": list(table.names or table.labels)}
    columns |= {each.title: list(each.values) for each in table.columns}
    return pandas.DataFrame(columns)
