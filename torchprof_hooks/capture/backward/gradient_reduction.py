"""Whether a backward pass has to wait for the gradients of other processes."""

from __future__ import annotations


class GradientReduction:
    """What ``DistributedDataParallel`` is about to do.

    It sums up gradients while a backward pass runs, and at the end of the pass waits
    until that is done: in a callback of the engine's, which nobody else sees.

    is_expected: whether it has made itself ready for a pass that is not over yet.
    """

    def __init__(self) -> None:
        self.is_expected = False


#: The one there is.
gradient_reduction = GradientReduction()
