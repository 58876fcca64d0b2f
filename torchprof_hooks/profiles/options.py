"""What users give as parameters, checked where they give it.

Each check raises TypeError or ValueError with the name of the parameter as the user
wrote it, what it may be, and what it was: "max_rows must be a whole number, 1 or more,
not 'a'".
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any


def _wrong(kind: type[Exception], name: str, wanted: str, value: object) -> Exception:
    return kind(f"{name} must be {wanted}, not {value!r}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """One of a few texts."""
    if isinstance(value, str) and value in choices:
        return
    *others, last = map(repr, choices)
    wanted = f"{', '.join(others)} or {last}"
    kind = ValueError if isinstance(value, str) else TypeError
    raise _wrong(kind, name, wanted, value)


def check_whole(name: str, value: Any, least: int | None = None) -> int:
    """A whole number, of any type that Python takes for one; returned as an int."""
    bound = "" if least is None else f", {least} or more"
    wanted = f"a whole number{bound}"
    try:
        number = operator.index(value)
    except TypeError:
        raise _wrong(TypeError, name, wanted, value) from None
    if isinstance(value, bool):
        raise _wrong(TypeError, name, wanted, value)
    if least is not None and number < least:
        raise _wrong(ValueError, name, wanted, value)
    return number


def check_positive(name: str, value: object) -> None:
    """A number above zero."""
    wanted = "a number above 0"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong(TypeError, name, wanted, value)
    if math.isnan(value) or value <= 0:
        raise _wrong(ValueError, name, wanted, value)


def check_either(**given: object) -> None:
    """One of two numbers above zero, the other one None.

    given: by their names.
    """
    found = {name: value for name, value in given.items() if value is not None}
    if len(found) != 1:
        values = " and ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(
            f"{' or '.join(given)} must be a number above 0, and the other one None, "
            f"not {values}"
        )
    for name, value in found.items():
        check_positive(name, value)


def check_flag(name: str, value: object) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise _wrong(TypeError, name, "True or False", value)


def check_text(name: str, value: object) -> None:
    """A text that is not empty."""
    if not isinstance(value, str):
        raise _wrong(TypeError, name, "a text", value)
    if not value:
        raise _wrong(ValueError, name, "a text that is not empty", value)


def check_file(name: str, value: object) -> None:
    """Something to print to, or None."""
    if value is not None and not callable(getattr(value, "write", None)):
        raise _wrong(TypeError, name, "a file that is open for text, or None", value)


def check_path(name: str, value: Any) -> Path:
    """The path of a file or folder, which need not be there."""
    wanted = "the path of a file or folder"
    if not isinstance(value, (str, os.PathLike)):
        raise _wrong(TypeError, name, wanted, value)
    if "\0" in os.fspath(value):
        raise _wrong(ValueError, name, f"{wanted} without null characters", value)
    return Path(value)


def check_callable(name: str, value: object) -> None:
    """A function, or something else that can be called."""
    if not callable(value):
        raise _wrong(TypeError, name, "a function", value)
