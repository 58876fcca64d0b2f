"""Tips: changes that the numbers suggest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from torchprof_hooks.documents.build.tips.compiling import (
    graph_breaks,
    recompiles,
)
from torchprof_hooks.documents.build.tips.evidence import Evidence
from torchprof_hooks.documents.build.tips.loop import (
    data_loading,
    reads_from_device,
    small_functions,
    waiting_for_others,
)
from torchprof_hooks.documents.build.tips.settings import (
    anomaly_detection,
    recomputing,
    unfused_optimizers,
)
from torchprof_hooks.documents.document import Tip
from torchprof_hooks.profiles.data import ProfileData

#: In the order in which tips are shown.
_FINDERS: Final[tuple[Callable[[Evidence], Iterator[Tip]], ...]] = (
    data_loading,
    waiting_for_others,
    reads_from_device,
    anomaly_detection,
    graph_breaks,
    recompiles,
    unfused_optimizers,
    recomputing,
    small_functions,
)


def find_tips(profile: ProfileData) -> list[Tip]:
    """What the numbers of a run suggest; a tip is there only if its condition holds.

    Times by function are estimates where few steps were measured, and so are called
    "about".
    """
    evidence = Evidence(profile)
    return [tip for find in _FINDERS for tip in find(evidence)]
