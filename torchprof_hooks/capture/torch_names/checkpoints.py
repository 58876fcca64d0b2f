"""Private names of ``torch.utils.checkpoint``."""

from __future__ import annotations

import sys
from typing import Any, Final

from torchprof_hooks.capture.torch_names.place import Place

#: A recomputed forward is left by this exception as soon as torch's non-reentrant
#: checkpoint has what it needs. That is not a failure.
STOPS_RECOMPUTATION: Final = "_StopRecomputationError"


def beginning_of_recomputation() -> Place:
    """What is made as soon as a node asks for a tensor that is to be computed again.
    Where torch has none, the time until the first module is called is the node's."""
    return Place(_named("_recomputation_hook"), "__init__")


def end_of_recomputation() -> Place:
    """What checks the tensors that were computed again."""
    return Place(_named("_CheckpointFrame"), "check_recomputed_tensors_match")


def _named(name: str) -> Any:
    return getattr(sys.modules.get("torch.utils.checkpoint"), name, None)
