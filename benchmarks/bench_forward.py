"""What a link TimerHook adds to a module call, next to an empty pair of hooks.

Target: a call with the hook takes at most 1.3 times a call with the empty pair. The
module is the cheapest there is, ``nn.Identity``, so nothing hides the hooks.
"""

from __future__ import annotations

from statistics import median

import results
import torch
from bench import Variant, compare, empty_forward_hooks, times_table
from torch import nn

from torchprof_hooks.link_hooks import TimerHook

CALLS = 4096
EMPTY = "empty pre + post hook"


def main() -> None:
    torch.set_num_threads(1)
    module = nn.Identity()
    timer, owner = TimerHook(), TimerHook(backward=True)

    def calls() -> None:
        for _ in range(CALLS):
            module(1)

    times = compare(
        calls,
        [
            Variant("no hook"),
            Variant(EMPTY, empty_forward_hooks),
            Variant("TimerHook", lambda: timer),
            Variant("TimerHook(backward=True)", lambda: owner),
        ],
        rounds=60,
    )
    table = times_table(
        "Forward: nanoseconds per call of nn.Identity",
        times,
        scale=1 / CALLS,
        unit="ns",
        baseline=EMPTY,
    )
    figures = {
        name: {
            "ns_per_call": median(values) / CALLS,
            "ratio_to_empty": median(values) / median(times[EMPTY]),
        }
        for name, values in times.items()
    }
    results.save("forward", [table], figures)


if __name__ == "__main__":
    main()
