"""Tips on steps that are slower than others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torchprof_hooks.documents.build.slow_steps import phases_of_slow
from torchprof_hooks.documents.build.tips.compiling import recompiles
from torchprof_hooks.documents.build.tips.evidence import Evidence
from torchprof_hooks.documents.build.tips.loop import data_loading
from torchprof_hooks.documents.document import Tip
from torchprof_hooks.documents.words import PHASE_TITLES, percent, seconds
from torchprof_hooks.profiles.names import Phase

#: There is a tip if one phase is such a part of what slow steps took more than usual.
_MOSTLY: Final = 0.5

_REMEDIES: Final[dict[Phase, str]] = {
    "garbage": "gc.freeze() after the model is made leaves fewer objects to search; or "
    "gc.disable(), and gc.collect() every so many steps.",
    "data": "more workers (num_workers), or more batches in advance (prefetch_factor), "
    "even it out; persistent_workers=True, if it is the first step of each epoch.",
    "compiling": "sizes that change can be compiled as such from the beginning "
    "(torch.compile(..., dynamic=True)).",
}


def slow_steps(evidence: Evidence) -> Iterator[Tip]:
    """Steps that are slow for one reason that can be removed, unless another tip says
    so."""
    more = phases_of_slow(evidence.view)
    if not more:
        return
    (phase, most_ns), *_ = more.most_common(1)
    is_known = {"data": data_loading, "compiling": recompiles}.get(phase)
    if phase not in _REMEDIES or most_ns < _MOSTLY * more.total():
        return
    if is_known is None or not any(is_known(evidence)):
        share, title = percent(most_ns, more.total()), PHASE_TITLES[phase]
        yield Tip(
            f"What slow steps took more than usual is mostly {title}: {share} "
            f"({seconds(most_ns)})",
            _REMEDIES[phase],
        )
