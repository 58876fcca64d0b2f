"""The canaries that are asked while programs run: they tell what is not measured
because torch has changed a private name.

If a changed name would make numbers wrong without notice, its canary is asked when the
name is first needed. If the canary fails, what depends on it stays off, and the report
says so. If less would be reported, but nothing wrong, only tests ask, with each version
of torch: see ``tests/invisibility/canaries.py``.
"""

from __future__ import annotations

from typing import Final

from torchprof_hooks.capture.torch_names.autograd import (
    BACKWARD_PASSES,
    END_OF_NODES,
    RECOMPUTATION,
)
from torchprof_hooks.capture.torch_names.checkpoints_and_loaders import BATCHES
from torchprof_hooks.capture.torch_names.custom_functions import CUSTOM_FUNCTIONS
from torchprof_hooks.capture.torch_names.distributed import COLLECTIVES
from torchprof_hooks.capture.torch_names.functions import FUNCTIONS
from torchprof_hooks.capture.torch_names.storages import STORAGES

CANARIES: Final = (
    BACKWARD_PASSES,
    RECOMPUTATION,
    END_OF_NODES,
    FUNCTIONS,
    CUSTOM_FUNCTIONS,
    BATCHES,
    COLLECTIVES,
    STORAGES,
)


def not_measured() -> tuple[str, ...]:
    """A line for each canary that was asked for and failed."""
    return tuple(canary.line() for canary in CANARIES if canary.has_failed())
