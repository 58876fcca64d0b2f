"""Tips: changes of the program that the numbers suggest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from torchprof_hooks.documents.build.bottleneck import BottleneckKind
from torchprof_hooks.documents.build.layers import kind_of
from torchprof_hooks.documents.build.memory_failure import failure_of
from torchprof_hooks.documents.build.tips.bottleneck import bottleneck, flagged
from torchprof_hooks.documents.build.tips.compiling import (
    compile_failures,
    graph_breaks,
    recompiles,
)
from torchprof_hooks.documents.build.tips.evidence import Evidence
from torchprof_hooks.documents.build.tips.loop import (
    anomaly_detection,
    data_and_program,
    data_loading,
    outside_modules,
    reads_from_device,
    recomputing,
    small_functions,
    unfused_optimizers,
    waiting_for_others,
)
from torchprof_hooks.documents.build.tips.memory import (
    checkpointing,
    large_module,
    out_of_memory,
)
from torchprof_hooks.documents.build.tips.steps import slow_steps
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import Tip

_Finder: TypeAlias = Callable[[Evidence], Iterator[Tip]]

#: In the order in which tips are shown.
_FINDERS: Final[Sequence[_Finder]] = (
    large_module,
    data_and_program,
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
    flagged,
    small_functions,
)


#: Those on memory.
_ON_MEMORY: Final[Sequence[_Finder]] = (out_of_memory, checkpointing)
#: What helps with a bottleneck that is no module: tips on it, if there are any.
_ON_BOTTLENECKS: Final[Mapping[BottleneckKind, Sequence[_Finder]]] = {
    "data": (data_loading,),
    "waiting": (waiting_for_others,),
    "host": (reads_from_device, small_functions),
    "outside": (reads_from_device, outside_modules),
    "compiling": (recompiles, graph_breaks, compile_failures),
    "optimizer": (unfused_optimizers,),
}


def find_tips(view: View) -> list[Tip]:
    """The tips whose conditions the numbers meet, the one on the bottleneck first.

    Shares are shares of what the view shows, as in the tables beside them. Times by
    function are called "about", as they are estimates where few steps were measured.
    """
    evidence = Evidence(view)
    if failure_of(view.profile) is not None:  # time is not what it lacks
        return [tip for find in _ON_MEMORY for tip in find(evidence)]
    first = tip_on_bottleneck(view)
    found = [tip for find in _FINDERS for tip in find(evidence)]
    return [first, *(tip for tip in found if tip != first)] if first else found


def tip_on_bottleneck(view: View) -> Tip | None:
    """What to do about the bottleneck; None if there is none, or if it is layers about
    which nothing is unusual."""
    evidence, found = Evidence(view), view.bottleneck
    if found is None:
        return None
    if found.kind == "module":
        own = view.hottest and {kind_of(r, view.departing) for r in view.hottest.rows}
        flags = [flag for flag in view.flags if own and flag.kind in own]
        return next(flagged(evidence, flags), None)
    for find in _ON_BOTTLENECKS.get(found.kind, ()):
        for tip in find(evidence):
            return tip
    return bottleneck(evidence, found)
