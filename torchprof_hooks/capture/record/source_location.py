"""Where in the user's code something happens."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Final

import torch

_PACKAGES: Final = tuple(
    os.path.dirname(str(path)) + os.sep
    for path in (vars(torch)["__file__"], os.path.dirname(os.path.dirname(__file__)))
)


def place_of_caller() -> str:
    """File and line of the innermost code that is neither torch's nor ours:
    "train.py:42"; "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((*_PACKAGES, "<")):
            return f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
