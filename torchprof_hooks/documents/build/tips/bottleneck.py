"""Tips on what takes most, where it is no module; and on what is unusual of layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from torchprof_hooks.documents.build.bottleneck import Bottleneck, BottleneckKind
from torchprof_hooks.documents.build.flags import Flag
from torchprof_hooks.documents.build.tips.evidence import Evidence
from torchprof_hooks.documents.build.tips.loop import LATEST_PROCESS, MORE_WORKERS
from torchprof_hooks.documents.document import Tip

#: What is said, with the share, and what helps, where no other tip says more. The name
#: is that of the longest part: of an optimizer, or of a module.
_ADVICE: Final[Mapping[BottleneckKind, tuple[str, str]]] = {
    "data": ("Waiting for data takes {share}", MORE_WORKERS),
    "waiting": ("Waiting for other ranks takes {share}", LATEST_PROCESS),
    "optimizer": (
        "Steps of optimizers take {share}, the most in {name}",
        "fused=True, where its class has that, or else foreach=True updates all "
        "tensors together. If it is on, step less often, on larger batches.",
    ),
    "host": (
        "The device mostly waits for the host, which is in modules for {share}, the "
        "most in {name}",
        'torch.compile (mode="reduce-overhead") or larger batches launch more at once. '
        "Look for Python code in {name} that can be left out of the loop.",
    ),
    "compiling": (
        "Compiling (torch.compile) takes {share}",
        "TORCH_LOGS=recompiles says why. Sizes that change can be compiled as such "
        "(torch.compile(..., dynamic=True)).",
    ),
    "garbage": (
        "Python's garbage collection takes {share}",
        "it looks at all objects each time: gc.freeze() before the loop has it leave "
        "alone those that are there then, and gc.disable() with gc.collect() every so "
        "many steps has it search less often. Do not call gc.collect() in each step.",
    ),
    "outside": (
        "The program takes {share} outside modules and optimizers",
        'with torchprof_hooks.region("name") around parts of the loop, reports tell '
        "which of them it is.",
    ),
}


def bottleneck(evidence: Evidence, found: Bottleneck) -> Tip:
    """What to do about something that takes most and is no module."""
    claim, remedy = _ADVICE[found.kind]
    name, share = next(iter(found.parts_ns), ""), evidence.share(found.own_ns)
    return Tip(claim.format(share=share, name=name), remedy.format(name=name))


def flagged(evidence: Evidence, flags: Sequence[Flag] | None = None) -> Iterator[Tip]:
    """Layers about which something is unusual.

    flags: what is; None: all that is.
    """
    for flag in evidence.view.flags if flags is None else flags:
        if flag.claim:
            share = evidence.share(flag.own_ns)
            yield Tip(f"{flag.name} takes {share}{flag.claim}", flag.remedy)
