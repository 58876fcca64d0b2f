"""Where in the user's code something happens."""

from __future__ import annotations

import os
import sys
from typing import Final

import torch

from torchprof_hooks.capture.torch_names.modules import frames_from

_PACKAGES: Final = tuple(
    os.path.dirname(str(path)) + os.sep
    for path in (vars(torch)["__file__"], os.path.dirname(os.path.dirname(__file__)))
)


def place_of_caller() -> str:
    """File and line of the innermost code that is neither torch's nor ours:
    "train.py:42"; "" if there is none."""
    for frame in frames_from(sys._getframe(1)):
        file = frame.f_code.co_filename
        if not file.startswith((*_PACKAGES, "<")):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
    return ""
