"""The settings for the profile of a whole program, with Theano's names."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from torchprof_hooks.profiles.errors import FlagError
from torchprof_hooks.profiles.options import (
    MOST_FLOPS,
    checked_steps,
    trouble_with_file,
)

#: The prefix of most names in Theano. Users may leave it out.
PREFIX: Final = "profiling."
#: Destinations of a report that are not files.
STREAMS: Final = ("stderr", "stdout")


_SWITCHES: Final = {
    **dict.fromkeys(("true", "on", "1"), True),
    **dict.fromkeys(("false", "off", "0"), False),
}


def _switch(text: str) -> bool:
    return _SWITCHES[text.lower()]


def _number(
    kind: Callable[[str], float], wanted: str, least: float, most: float = math.inf
) -> dict[str, Any]:
    """The options of `_flag` for a number between `least` and `most`."""

    def convert(text: str) -> float:
        if least <= (value := kind(text)) <= most:
            return value
        raise ValueError(text)

    return {"convert": convert, "wanted": wanted}


def _whole(least: int) -> dict[str, Any]:
    return _number(int, f"a whole number, {least} or more", least)


def _flag(
    default: Any,
    meaning: str,
    value: str = "",
    *,
    convert: Callable[[str], Any] | None = None,
    wanted: str = "True or False",
) -> Any:
    """A field of `Flags`.

    meaning: its description in the help.
    value: the name of its value in the help.
    convert: makes its value of a text, or raises LookupError or ValueError; by default
        for a flag that is True or False, or a text.
    wanted: what it may be, for errors.
    """
    convert = convert or (str if isinstance(default, str) else _switch)
    described = {"convert": convert, "wanted": wanted}
    return field(
        default=default, metadata={**described, "meaning": meaning, "value": value}
    )


@dataclass(frozen=True, slots=True)
class Flags:
    """The settings; ``--help`` prints the description of each."""

    profile: bool = _flag(False, "measure, and print the report at exit")
    profile_memory: bool = _flag(False, "measure memory as well")
    device_idle: bool = _flag(
        False, "trace steps to see a device idle, and kernels by module"
    )
    profile_optimizer: bool = _flag(False, "list all recompiles and graph breaks")
    n_ops: int = _flag(20, "rows of the sections Class and Ops", "N", **_whole(1))
    n_apply: int = _flag(20, "rows of Apply and Device", "N", **_whole(1))
    output_line_width: int = _flag(
        120, "characters in a line; longer names are cut", "N", **_whole(1)
    )
    destination: str = _flag(
        "stderr", "where the report goes: stderr, stdout or a file", "WHERE"
    )
    ignore_first_call: bool = _flag(False, "leave the first step out of the report")
    time_thunks: bool = _flag(True, "measure functions", "BOOL")
    full: bool = _flag(False, "print all tables below the screen")
    tables: bool = _flag(
        False,
        "print Theano's tables as well: by class, function and call (so do the options "
        "that say how these look)",
    )
    steps: int | None = _flag(
        None, "measure so many training steps, not all", "N", **_whole(1)
    )
    every: int | None = _flag(
        None,
        "measure --steps of every so many steps, again and again",
        "N",
        **_whole(2),
    )
    save: str = _flag("", "write the profile to this file, too", "FILE")
    html: str = _flag("", "write a page for a browser to this file, too", "FILE")
    flush_secs: float = _flag(
        60.0,
        "seconds between writing that file",
        "SECONDS",
        **_number(float, "a number, above 0", sys.float_info.min),
    )
    peak_flops: float = _flag(
        0.0,
        "operations per second that the device can do, for MFU; 0: by its data sheet",
        "FLOPS",
        **_number(float, f"a number from 0 to {MOST_FLOPS:.0e}", 0, MOST_FLOPS),
    )
    items_per_step: int = _flag(
        0, "tokens or samples in a step, for items per second", "N", **_whole(0)
    )
    children: bool = _flag(
        False, "measure ranks, too, that the program starts as processes of Python"
    )
    ranks_report: bool = _flag(
        True,
        "have rank 0 alone print, and compare the saved profiles of all",
        "BOOL",
        wanted="on or off",
    )

    @property
    def wants_tables(self) -> bool:
        """Whether Theano's tables follow."""
        usual = {flag.name: flag.default for flag in fields(self)}
        return any(getattr(self, name) != usual[name] for name in _OF_TABLES)


_FIELDS: Final = {flag.name: flag for flag in fields(Flags)}
#: Flags that are about Theano's tables: each of them shows these.
_OF_TABLES: Final = (
    *("tables", "profile_optimizer", "n_ops", "n_apply", "output_line_width"),
)
#: Flags whose names have a prefix in Theano.
_PREFIXED: Final = {
    *("n_ops", "n_apply", "output_line_width", "destination"),
    *("ignore_first_call", "time_thunks"),
}


def option(name: str) -> str:
    """The option of the command for a field: that of memory has the name that it has in
    Python."""
    return "--" + name.replace("_", "-").replace("profile-memory", "memory")


def full_name(name: str) -> str:
    """The name of a field with Theano's prefix, if it has one there."""
    return PREFIX + name if name in _PREFIXED else name


def parse_flags(text: str) -> Flags:
    """Flags written as in ``THEANO_FLAGS``: "profile=True,profiling.n_ops=5".

    Raises:
        FlagError: the text is malformed; the message suggests what to write.
    """
    given: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise FlagError(f"{part!r} is no flag: write name=value")
        given[name] = value
    return make_flags(given)


def make_flags(
    given: Mapping[str, Any], spelled: Callable[[str], str] = full_name
) -> Flags:
    """Flags from values by name, with or without the prefix.

    spelled: makes the name of a field as users write it, for errors.

    Raises:
        FlagError: a flag does not exist, or its value is not valid.
    """
    values = {}
    for name, value in given.items():
        own = name.removeprefix(PREFIX)
        if own not in _FIELDS:
            every = ", ".join(map(full_name, _FIELDS))
            meant = did_you_mean(own, _FIELDS) or f"; there are {every}"
            raise FlagError(f"there is no flag {name!r}{meant}")
        if own in values:
            raise FlagError(f"the flag {full_name(own)!r} is given twice")
        values[own] = _parsed(own, value, spelled)
    found = Flags(**values)
    try:
        checked_steps(found.steps, found.every)
    except ValueError as error:
        text = str(error).removeprefix("every")
        raise FlagError(spelled("every") + text) from None
    return found


def _parsed(name: str, value: Any, spelled: Callable[[str], str]) -> Any:
    flag = _FIELDS[name]
    if value is None and (flag.default is None or isinstance(flag.default, str)):
        return flag.default  # not a file called "None"
    try:
        return flag.metadata["convert"](str(value))
    except (LookupError, ValueError):
        wanted = flag.metadata["wanted"]
        raise FlagError(f"{spelled(name)} must be {wanted}, not {value!r}") from None


def did_you_mean(written: str, known: Iterable[str]) -> str:
    """``; did you mean --full?``, if what was written is like one that is known; else
    nothing."""
    from difflib import get_close_matches

    close = get_close_matches(written, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def as_texts(flags: Flags) -> dict[str, str]:
    """The flags as texts, from which `make_flags` makes the same flags again."""
    values = ((flag.name, getattr(flags, flag.name)) for flag in fields(flags))
    return {name: str(value) for name, value in values if value is not None}


def settle(flags: Flags, spelled: Callable[[str], str]) -> Flags:
    """The same flags with absolute paths, so that the program can change its working
    directory. Checks the files now, as the program may run for days before it writes.

    spelled: makes the name of a flag as users write it, for errors.

    Raises:
        FlagError: a file cannot be written there.
    """
    found = {}
    for name in ("save", "html", "destination"):
        written = getattr(flags, name)
        if written and not (name == "destination" and written in STREAMS):
            trouble = trouble_with_file(Path(written))
            if trouble:
                raise FlagError(f"{spelled(name)} {written}: {trouble}")
            found[name] = os.path.abspath(written)
    return replace(flags, **found)
