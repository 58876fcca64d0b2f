"""How true the times of modules are: against planted work, and against Kineto.

Targets: every module of every case within 10 % of its planted work, forward and
backward; half of a model's modules within 2 % of what Kineto saw, in the same steps.
"""

from __future__ import annotations

import gc
import warnings

import torch
from accuracy import kineto
from accuracy.attribution_tools import installed_tools
from accuracy.cases import CASES
from accuracy.planted_comparison import (
    TOLERANCE,
    compare_tools,
    outcome_table,
    tool_figures,
)
from bench import result_name, rounds
from models import WORKLOADS
from results import save

PLANTED_ROUNDS = 5
KINETO_ROUNDS = 3

PLANTED_NOTES = (
    "How far a tool's time for a module is off from the work planted there, in the "
    "module of the case that it gets most wrong; bold: more than "
    f"{TOLERANCE:.0f} %. What is wrong is measured again, up to {PLANTED_ROUNDS} "
    "times in all, and the best counts for each module: what else runs on a machine "
    "is not in the same place each time. `FlopCounterMode` counts operations, and is "
    "compared with the operations planted. Recomputation counts as forward for all "
    "tools. Where there is the name of an exception, the training step raises that "
    "with the tool.",
)
BACKWARD_NOTES = (
    "`torch.profiler` (which knows modules with `with_stack=True` only), "
    "`torchprof` and DeepSpeed's profiler have no times of backward by "
    "module.",
)


def main() -> None:
    torch.set_num_threads(1)
    gc.freeze()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about hooks
        planted = compare_tools(CASES, installed_tools(), rounds(PLANTED_ROUNDS))
        models_found = kineto.compare_models(WORKLOADS[1:], rounds(KINETO_ROUNDS))
    save(
        result_name("accuracy"),
        [
            outcome_table(planted, "forward", PLANTED_NOTES),
            outcome_table(planted, "backward", BACKWARD_NOTES),
            kineto.table(models_found),
        ],
        {
            "tools": tool_figures(planted),
            "kineto": kineto.figures(models_found),
        },
    )


if __name__ == "__main__":
    main()
