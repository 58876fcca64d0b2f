"""The rows of a profile as a data frame."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, get_args

from torchprof_hooks.profiles.names import Grouping, Library
from torchprof_hooks.profiles.options import check_choice
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.reports.export.rows import flat_fields, flat_records


def dataframe(profile: Profile, by: Grouping, library: Library | None) -> Any:
    """See `Profile.to_dataframe`."""
    if library is not None:
        check_choice("library", library, get_args(Library))
    columns: dict[str, list[Any]] = {field: [] for field in flat_fields(profile)}
    for record in flat_records(profile, by):
        for field, value in record.items():
            columns[field].append(value)
    return _library(library).DataFrame(columns)


def _library(wanted: Library | None) -> Any:
    """One of two libraries; both can make a data frame of lists by name."""
    names = get_args(Library) if wanted is None else (wanted,)
    for name in names:
        if find_spec(name) is not None:
            return import_module(name)
    raise ImportError(
        f"to_dataframe needs {' or '.join(names)}: pip install {names[0]}"
    )
