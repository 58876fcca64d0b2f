"""Tips on memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torchprof_hooks.documents.build.memory_step import savings
from torchprof_hooks.documents.build.tips.evidence import Evidence
from torchprof_hooks.documents.document import Tip
from torchprof_hooks.documents.render.units import best_byte_format
from torchprof_hooks.documents.words import percent

#: The least share of activations in the peak for which there is a tip.
LEAST_ACTIVATIONS: Final = 0.3
#: The least that checkpointing has to save, as a share of the peak.
LEAST_SAVED: Final = 0.2


def checkpointing(evidence: Evidence) -> Iterator[Tip]:
    """What forward keeps is most of the peak, and could be computed again: the modules
    that save most for their time."""
    profile = evidence.profile
    if profile.memory is None or profile.memory.step is None:
        return
    kept = profile.memory.bytes_by_kind().get("activation", 0)
    share = kept / max(profile.memory.peak_bytes, 1)
    peak_bytes = profile.memory.step.peak_bytes
    worth = [
        one
        for one in savings(profile)
        if one.saved_bytes >= LEAST_SAVED * peak_bytes and one.extra_ns > 0
    ]
    if not worth or share < LEAST_ACTIVATIONS:
        return
    best = max(worth, key=lambda one: one.saved_bytes / one.extra_ns)
    step_ns = profile.step_times.mean_ns
    longer = f", for {percent(best.extra_ns, step_ns)} more time" if step_ns else ""
    saved = percent(best.saved_bytes, peak_bytes)
    yield Tip(
        f"Activations are {percent(share)} of the memory at the peak",
        f"checkpointing {best.label} (torch.utils.checkpoint) would lower the peak of "
        f"a step to {best_byte_format(best.peak_bytes)}, by {saved}{longer}.",
    )
