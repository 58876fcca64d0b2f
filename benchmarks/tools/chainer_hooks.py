"""What Chainer's own TimerHooks add to a training step.

Run by `bench_overhead.py` with the Python of an environment in which Chainer is
installed, and no torch. Prints nanoseconds of each turn as JSON.
"""

from __future__ import annotations

import json
import platform
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter_ns
from typing import Any

warnings.simplefilter("ignore")

import chainer  # noqa: E402
import numpy as np  # noqa: E402
from chainer import function_hooks, link_hooks  # noqa: E402

LINKS = 100
STEPS = 5


def chain_step() -> Callable[[], None]:
    """The step of the chain of small layers in models.py, in Chainer."""
    model = chainer.ChainList(*(chainer.links.Linear(8, 8) for _ in range(LINKS)))
    optimizer = chainer.optimizers.SGD(1e-3).setup(model)
    x = np.random.randn(4, 8).astype(np.float32)

    def step() -> None:
        y = x
        for link in model:
            y = link(y)
        loss = chainer.functions.mean(y * y)
        model.cleargrads()
        loss.backward()
        optimizer.update()

    return step


def main() -> None:
    rounds = int(sys.argv[1])
    step = chain_step()
    hooks: dict[str, Callable[[], Any]] = {
        "bare": nullcontext,
        "Chainer TimerHook": link_hooks.TimerHook,
        "Chainer function TimerHook": function_hooks.TimerHook,
    }
    times: dict[str, list[int]] = {name: [] for name in hooks}
    for turn in range(rounds + 1):
        for name, make in hooks.items():
            with make():
                start_ns = perf_counter_ns()
                for _ in range(STEPS):
                    step()
                elapsed_ns = perf_counter_ns() - start_ns
            if turn:
                times[name].append(elapsed_ns // STEPS)
    found = {"chainer": chainer.__version__, "numpy": np.__version__}
    found["python"] = platform.python_version()
    print(json.dumps({"versions": found, "modules": LINKS, "times": times}))


if __name__ == "__main__":
    main()
