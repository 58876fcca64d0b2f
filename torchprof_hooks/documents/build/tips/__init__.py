"""Tips: changes of the program that the numbers suggest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from torchprof_hooks.documents.build.tips.compiling import (
    compile_failures,
    graph_breaks,
    recompiles,
)
from torchprof_hooks.documents.build.tips.evidence import Evidence
from torchprof_hooks.documents.build.tips.loop import (
    anomaly_detection,
    data_loading,
    reads_from_device,
    recomputing,
    small_functions,
    unfused_optimizers,
    waiting_for_others,
)
from torchprof_hooks.documents.build.tips.memory import checkpointing, out_of_memory
from torchprof_hooks.documents.build.tips.steps import slow_steps
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import Tip

#: In the order in which tips are shown.
_FINDERS: Final[tuple[Callable[[Evidence], Iterator[Tip]], ...]] = (
    data_loading,
    waiting_for_others,
    reads_from_device,
    anomaly_detection,
    graph_breaks,
    recompiles,
    compile_failures,
    unfused_optimizers,
    recomputing,
    slow_steps,
    out_of_memory,
    checkpointing,
    small_functions,
)


def find_tips(view: View) -> list[Tip]:
    """The tips whose conditions the numbers of a run meet.

    Shares are shares of what the view shows, as in the tables beside them. Times by
    function are called "about", as they are estimates where few steps were measured.
    """
    evidence = Evidence(view)
    return [tip for find in _FINDERS for tip in find(evidence)]
