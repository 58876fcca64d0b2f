"""Tips on what is switched on or off."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from torchprof_hooks.documents.build.tips.evidence import Evidence, Share
from torchprof_hooks.documents.document import Tip
from torchprof_hooks.documents.words import plural
from torchprof_hooks.profiles.names import optimizer_name
from torchprof_hooks.profiles.program import OptimizerFacts

#: The least share of the time of an optimizer that could be faster.
LEAST_OPTIMIZER: Final = 0.05
#: The same for recomputing, some of which is the price of saving memory.
LEAST_RECOMPUTE: Final = 0.15

#: Optimizers -> devices on which their fused form is known to be the faster one. Where
#: plain SGD waits for memory alone, as on the CPU, there is nothing to win.
_FASTER_FUSED: Final = {
    "Adagrad": ("cpu",),
    "Adam": ("cpu", "cuda"),
    "AdamW": ("cpu", "cuda"),
    "SGD": ("cuda",),
}


def anomaly_detection(evidence: Evidence) -> Iterator[Tip]:
    """Autograd looked for anomalies."""
    if evidence.program.facts.detects_anomalies:
        yield Tip(
            "Autograd's anomaly detection was on",
            "it notes a traceback for every function and searches every gradient for "
            "NaN. Switch it off (torch.autograd.set_detect_anomaly) when you have "
            "found what you look for.",
        )


def unfused_optimizers(evidence: Evidence) -> Iterator[Tip]:
    """Optimizers that have a faster form."""
    by_class: defaultdict[str, list[OptimizerFacts]] = defaultdict(list)
    for facts in evidence.program.facts.optimizers:
        if _can_be_faster(facts):
            by_class[facts.name].append(facts)
    if not by_class:
        return
    profile = evidence.profile
    times = {row.name: row.self_ns for row in profile.rows() if row.kind == "optimizer"}
    for name, optimizers in by_class.items():
        share = Share(times.get(optimizer_name(name), 0), profile.wall_ns)
        if share.fraction >= LEAST_OPTIMIZER:
            count = sum(facts.parameters for facts in optimizers)
            yield Tip(
                f"{name} takes {share} for {plural(count, 'tensor')} on "
                f"{optimizers[0].device}",
                f"{name}(..., fused=True) does the same faster.",
            )


def _can_be_faster(facts: OptimizerFacts) -> bool:
    is_known = facts.device in _FASTER_FUSED.get(facts.name, ())
    return is_known and facts.can_fuse and not facts.is_fused


def recomputing(evidence: Evidence) -> Iterator[Tip]:
    """Activation checkpoints that cost much."""
    share = evidence.of_phases("recompute")
    if share.fraction < LEAST_RECOMPUTE:
        return
    times = {
        row.name: row.phases["recompute"].cumulative_ns
        for row in evidence.profile.rows()
        if row.kind == "module" and row.phases["recompute"].calls
    }
    most = max(times, key=lambda name: times[name], default="")
    where = f", the most in {most} ({times[most] / 1e9:.3f}s)" if most else ""
    yield Tip(
        f"Recomputing (activation checkpointing) takes about {share}{where}",
        "if memory allows, checkpoint less.",
    )
