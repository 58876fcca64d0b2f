"""Versions of the format, and how files of old ones become files of the newest.

Version 4 has the times of steps, and the phases "waiting", "communication" and
"compiling", whose time was that of whoever waited, or was compiled; says of an own time
that it is not below zero, leaves out what a name has nothing of (implementation,
inputs, place), and names format and version once per file.
Version 3 has the phase "data", whose time was in "outside"; operations, what measuring
took, implementations and inputs. Version 2 has memory and functions.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from torchprof_hooks.profiles.files.codec import checked_object

FORMAT: Final = "torchprof_hooks profile"
VERSION: Final = 4

#: The first fields of every file.
HEADER: Final = {"format": FORMAT, "version": VERSION}


def newest(content: Any) -> dict[str, Any]:
    """The content of a file, without its header, as the newest version has it.

    Raises:
        ValueError: the file is not a profile, or of a version that is not known.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError("is not a profile of torchprof_hooks")
    version = content.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise ValueError(
            f"has version {version!r}; this release reads versions 1 to {VERSION}"
        )
    kept = {**checked_object(content)}
    for name in HEADER:
        del kept[name]
    if version < VERSION:
        with suppress(AttributeError, KeyError, TypeError):  # the codec says what it is
            _upgrade(kept, version)
    return kept


def settle_debts(content: dict[str, Any]) -> None:
    """Make own times below zero 0, and subtract the difference from the largest ones,
    so that the sum stays the same. Times below zero come about where a profile was read
    while calls were open, or after an interrupt: then some time was booked twice."""
    cells = content["cells"]
    debt_ns = 0
    for cell in cells:
        debt_ns -= min(cell["self_ns"], 0)
        cell["self_ns"] = max(cell["self_ns"], 0)
    for cell in sorted(cells, key=lambda cell: -cell["self_ns"]) if debt_ns else ():
        paid_ns = min(cell["self_ns"], debt_ns)
        cell["self_ns"] -= paid_ns
        debt_ns -= paid_ns


def _upgrade(content: dict[str, Any], version: int) -> None:
    if version == 1:
        content.update(memory=None, undivided_passes=0)
    settle_debts(content)
    for stratum in content.get("program", {}).get("strata", {}).values():
        profile = stratum["profile"]
        for name in HEADER:
            del profile[name]
        _upgrade(profile, version)
