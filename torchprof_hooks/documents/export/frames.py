"""The rows of a profile as data frames, of pandas or polars."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, get_args

from torchprof_hooks.documents.export.rows import rows_table
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Grouping, Library
from torchprof_hooks.profiles.options import check_choice


def dataframe(profile: ProfileData, by: Grouping, library: Library | None) -> Any:
    """See `Profile.to_dataframe`."""
    if library is not None:
        check_choice("library", library, get_args(Library))
    table = rows_table(profile, by)
    names = table.names or table.labels
    columns: dict[str, list[Any]] = {"name": list(names)}
    columns |= {each.title: list(each.values) for each in table.columns}
    return _library(library).DataFrame(columns)


def _library(wanted: Library | None) -> Any:
    """The wanted library, or the first that is installed. Both can make a data frame of
    lists by name."""
    names = get_args(Library) if wanted is None else (wanted,)
    for name in names:
        if find_spec(name) is not None:
            return import_module(name)
    raise ImportError(
        f"to_dataframe needs {' or '.join(names)}: pip install {names[0]}"
    )
