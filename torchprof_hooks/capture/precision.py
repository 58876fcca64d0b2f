"""How exactly torch multiplies."""

from __future__ import annotations

from typing import Final

import torch

#: The first devices whose tensor cores multiply float32, in the TF32 format.
_AMPERE: Final = (8, 0)


def leaves_tf32_unused() -> bool:
    """Whether the current CUDA device could multiply float32 matrices in TF32, and
    torch does not let it. Does not initialize CUDA."""
    is_in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if not is_in_use or torch.version.cuda is None:
        return False
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by torch's newer settings as well
        return False
    has_cores = torch.cuda.get_device_capability() >= _AMPERE
    return has_cores and precision == "highest"
