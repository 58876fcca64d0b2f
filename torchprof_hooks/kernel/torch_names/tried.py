"""Versions of torch that this package was tried with."""

from __future__ import annotations

import re
from typing import Final

#: Minor versions of torch whose rows are in ``docs/compatibility.md``, oldest first.
TRIED: Final = ("2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15")


def minor(version: str) -> str:
    """Releases of a minor version of torch have one binary interface: "2.13"."""
    return ".".join(version.split(".")[:2])


def is_tried(version: str) -> bool:
    """Whether `version` is a release of a minor version that was tried."""
    is_released = re.fullmatch(r"\d+\.\d+\.\d+(\+.*)?", version)
    return is_released is not None and minor(version) in TRIED
