"""The parameters that users give, checked where they give them.

A docstring says what a check accepts. For anything else, it raises TypeError or
ValueError with the parameter's name, what it may be, and what it was: "max_rows must be
a whole number, 1 or more, not 'a'".
"""

from __future__ import annotations

import inspect
import math
import operator
import os
import re
import sys
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Final, TextIO

#: More operations per second than any machine does.
MOST_FLOPS: Final = 1e30


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


def checked_steps(steps: Any, every: Any) -> tuple[int | None, int | None]:
    """How many steps are to be measured, and of how many; None: all, or once."""
    if steps is None:
        if every is not None:
            raise ValueError(
                "every must be given with steps, which says how many of every "
                f"{every!r} steps are measured"
            )
        return None, None
    some = check_whole("steps", steps, 1)
    if every is None:
        return some, None
    of = check_whole("every", every)
    if of <= some:
        raise ValueError(f"every must be above steps ({some}), not {every!r}")
    return some, of


def check_positive(name: str, value: object) -> None:
    """A number above zero."""
    wanted = "a number above 0"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong(TypeError, name, wanted, value)
    if math.isnan(value) or value <= 0:
        raise _wrong(ValueError, name, wanted, value)


def check_either(**given: object) -> None:
    """One of two parameters is a number above zero, and the other one is None.

    given: the values by the names of the parameters.
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
    """A file that is open for text, or None."""
    if value is not None and not callable(getattr(value, "write", None)):
        raise _wrong(TypeError, name, "a file that is open for text, or None", value)


def print_to(file: TextIO | None, text: str) -> None:
    """Print to a file; if it is None, to standard error. Print nothing if `sys.stderr`
    is None: `print` would write to the standard output of the program."""
    if (found := sys.stderr if file is None else file) is not None:
        print(text, file=found)


def check_path(name: str, value: Any) -> Path:
    """The path of a file or folder, which need not be there."""
    wanted = "the path of a file or folder"
    if not isinstance(value, (str, os.PathLike)):
        raise _wrong(TypeError, name, wanted, value)
    if "\0" in os.fspath(value):
        raise _wrong(ValueError, name, f"{wanted} without null characters", value)
    return Path(value)


def trouble_with_file(path: Path) -> str:
    """Why a file cannot be written there, and what to do; "" if it most likely can."""
    folder = path.absolute().parent
    if not folder.is_dir():
        kind = "is not a folder" if folder.exists() else "does not exist"
        return f"the folder {folder} {kind}: make it first, or name another file"
    if path.is_dir():
        return "that is a folder: name a file in it"
    target = Path(os.path.realpath(path))
    is_there = target.exists()
    if is_there and not os.access(target, os.W_OK):
        return "that file cannot be written to: name another one"
    # A file is replaced by a new one, for which its folder must be writable; devices
    # and pipes are written to.
    if (target.is_file() or not is_there) and not os.access(target.parent, os.W_OK):
        return f"the folder {target.parent} cannot be written to: name another file"
    return ""


def check_new_file(name: str, value: Any) -> Path:
    """The path of a file that can be written; returned as an absolute path."""
    path = check_path(name, value)
    trouble = trouble_with_file(path)
    if trouble:
        wanted = "the path of a file that can be written"
        raise ValueError(f"{name} must be {wanted}, not {value!r}: {trouble}")
    return path.absolute()


def check_callable(name: str, value: object) -> None:
    """A function, or something else that can be called."""
    if not callable(value):
        raise _wrong(TypeError, name, "a function", value)


def check_plain_function(name: str, value: object) -> None:
    """A function or method whose work is done when it returns; so no generator, no
    coroutine and no class."""
    kinds = (
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
    )
    is_plain = callable(value) and not isinstance(value, type)
    if not is_plain or any(is_kind(value) for is_kind in kinds):
        wanted = (
            "a plain function (for others, use `with profile():` inside of them; for "
            "a class of modules, `@profiled`)"
        )
        raise _wrong(TypeError, name, wanted, value)


_SHARE: Final = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)(e-?\d{1,2})? ?(?P<sign>%?)")
_WANTED_SHARE: Final = 'a share, "2%" or 0.02'


def check_share(name: str, value: Any) -> float:
    """A share: "2%", "0.02" or 0.02; returned as a number. A number without "%" is a
    share of at most 1, and never per cent."""
    if isinstance(value, bool) or not isinstance(value, (Real, str)):
        raise _wrong(TypeError, name, _WANTED_SHARE, value)
    text = str(value).strip().lower()
    found = _SHARE.fullmatch(text) if text.isascii() else None
    if found is None:
        raise _wrong(ValueError, name, _WANTED_SHARE, value)
    number = float(text.rstrip(" %"))
    if found["sign"]:
        return number / 100
    if number > 1:
        wanted = f'{_WANTED_SHARE}: above 1, write "{number:g}%"'
        raise _wrong(ValueError, name, wanted, value)
    return number
