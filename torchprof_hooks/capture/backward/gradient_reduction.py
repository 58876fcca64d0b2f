"""Whether a backward pass has to wait for the gradients of other processes."""

from __future__ import annotations

from torchprof_hooks.capture.record.exchanges import GradientBuckets


class GradientReduction:
    """What ``DistributedDataParallel`` is about to do.

    It sums up gradients while a backward pass runs, and at the end of the pass waits
    until that is done: in a callback of the engine's, which nobody else sees.

    is_expected: whether it is prepared for a backward pass that is not over yet.
    buckets: what it sums up in that pass, as far as it is known.
    """

    def __init__(self) -> None:
        self.is_expected = False
        self.buckets = GradientBuckets()


#: The one there is.
gradient_reduction = GradientReduction()
