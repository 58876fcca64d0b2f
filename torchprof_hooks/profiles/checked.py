"""What is read from files, checked for being what it should be."""

from __future__ import annotations

from typing import Any


def checked_text(value: Any) -> str:
    """A text, or TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def checked_integer(value: Any) -> int:
    """A whole number, or TypeError."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def checked_list(value: Any) -> list[Any]:
    """A list, or TypeError."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def checked_texts(value: Any) -> tuple[str, ...]:
    """A list of texts, as a tuple, or TypeError."""
    return tuple(map(checked_text, checked_list(value)))


def one_of(valid: tuple[Any, ...], value: Any) -> Any:
    """One of `valid`, or ValueError."""
    if value not in valid:
        raise ValueError(f"{value!r} is none of {valid}")
    return value
