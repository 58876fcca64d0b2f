"""Tips on memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from torchprof_hooks.documents.build.memory_failure import failure_of, failure_tip
from torchprof_hooks.documents.build.memory_step import savings
from torchprof_hooks.documents.build.memory_tree import module_of
from torchprof_hooks.documents.build.tips.evidence import Evidence
from torchprof_hooks.documents.document import Tip
from torchprof_hooks.documents.render.units import best_byte_format
from torchprof_hooks.documents.words import percent
from torchprof_hooks.profiles.memory import bytes_by_kind

#: The least share of activations in the peak for which there is a tip.
LEAST_ACTIVATIONS: Final = 0.3
#: The least share of one module, in what its calls make, for which there is a tip; and
#: how many of its calls that names.
LEAST_OF_ONE: Final = 1 / 3
_CALLS_NAMED: Final = 2
_OF_CALLS: Final = ("activation", "temporary")
#: The least that checkpointing has to save, as a share of the peak.
LEAST_SAVED: Final = 0.2
#: What saves more comes first if it saves nearly as much for its time.
_NEARLY: Final = 0.5


def large_module(evidence: Evidence) -> Iterator[Tip]:
    """A module without parameters has much of the peak: some tensors of one place."""
    profile, memory = evidence.view.profile, evidence.memory
    sizes, functions = Counter[str](), defaultdict[str, Counter[str]](Counter)
    has_parameters = set[str]()
    for held in memory.at_peak if memory else ():
        name = module_of(profile, held)
        if held.kind == "parameter":
            has_parameters.add(name)
        elif held.kind in _OF_CALLS and name in profile.modules:
            sizes[name] += held.bytes
            functions[name][held.owner] += held.bytes
    for name, size in sizes.most_common(1):
        share = size / sum(held.bytes for held in memory.at_peak) if memory else 0.0
        is_plain = profile.modules[name].kind == "module" and name not in has_parameters
        if share <= LEAST_OF_ONE or not is_plain:
            return
        calls = ", ".join(
            f"{call} {best_byte_format(n)}"
            for call, n in functions[name].most_common(_CALLS_NAMED)
            if call != name
        )
        remedy = "compute it in parts, or by functions that keep less of it."
        yield Tip(
            f"{name} has {percent(share)} of the memory at the peak",
            f"{calls}. {remedy.capitalize()}" if calls else remedy,
        )


def out_of_memory(evidence: Evidence) -> Iterator[Tip]:
    """Memory ran out: for one large tensor, or most of it was what forward keeps."""
    profile = evidence.view.profile
    failure = failure_of(profile)
    if failure is None:
        return
    if found := [*failure_tip(profile)]:
        yield from found
        return
    share = bytes_by_kind(failure.held).get("activation", 0) / failure.held_bytes
    if share >= LEAST_ACTIVATIONS:
        yield Tip(
            f"Activations were {percent(share)} of the memory when it ran out",
            "measure a smaller batch: its report tells what checkpointing would save.",
        )


def checkpointing(evidence: Evidence) -> Iterator[Tip]:
    """What forward keeps is most of the peak, and could be computed again."""
    memory, profile = evidence.memory, evidence.profile
    if memory is None or memory.step is None:
        return
    kept = memory.bytes_by_kind().get("activation", 0)
    share = kept / max(memory.peak_bytes, 1)
    peak_bytes = memory.step.peak_bytes
    worth = [
        one
        for one in savings(profile, memory.step)
        if one.saved_bytes >= LEAST_SAVED * peak_bytes and one.extra_ns > 0
    ]
    if not worth or share < LEAST_ACTIVATIONS:
        return
    best_rate = max(one.saved_bytes / one.extra_ns for one in worth)
    best = next(w for w in worth if w.saved_bytes / w.extra_ns >= best_rate * _NEARLY)
    step_ns = profile.step_times.mean_ns
    longer = f", for {percent(best.extra_ns, step_ns)} more time" if step_ns else ""
    saved = percent(best.saved_bytes, peak_bytes)
    yield Tip(
        f"Activations are {percent(share)} of the memory at the peak",
        f"checkpointing {best.label} (torch.utils.checkpoint) would lower the peak of "
        f"a step to {best_byte_format(best.peak_bytes)}, by {saved}{longer}.",
    )
