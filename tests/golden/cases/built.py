"""What stored profiles do not have: several functions of a program, devices, operations
and their rates, memory that grows or has run out, modules with two names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.build import MS, after, buckets, with_fields
from tests.documents.found import page_document
from tests.documents.runs import (
    ALLOCATING,
    BUSY,
    COUNTED,
    HOLDING,
    LEAKING,
    MB,
    RUN,
    TRACED,
    TRAINED,
    contrastive,
    ran_out,
)
from tests.documents.test_compilation import SUMMARY
from tests.documents.test_exit_report import PROGRAM, START_UP
from tests.golden.cases.profile import blocks_of
from tests.profiles.test_collectives import ALL
from torchprof_hooks.documents.build.exit_report import ExitLayout
from torchprof_hooks.documents.report import program_text
from torchprof_hooks.profiles.measured_steps import MeasuredSteps
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.peak import Peak
from torchprof_hooks.profiles.program import Program
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.trace.device_step import DeviceStep

#: Everything that a report of a program may have.
EVERYTHING: Final = replace(
    after(START_UP, PROGRAM),
    program=Program("train.py", 3000 * MS, SUMMARY),
    modules={
        **START_UP.modules,
        **PROGRAM.modules,
        "Net.b": ModuleInfo("Linear", aliases=("Net.again",)),
    },
    overhead_ns=7 * MS,
    devices=("cuda:0",),
    measured=MeasuredSteps(traced=2, traced_ns=500 * MS),
    collectives=ALL,
    device_step=DeviceStep(reason="no step was traced"),
)
LAYOUT: Final = ExitLayout(n_ops=3, n_apply=2)

CASES: Final[dict[str, Callable[[], str]]] = {
    "theano_parts.txt": lambda: program_text(EVERYTHING, LAYOUT, with_memory=True),
    "theano_loop.txt": lambda: program_text(EVERYTHING, LAYOUT, ignore_first_call=True),
    "theano_ran_out.txt": lambda: program_text(
        ran_out(2048 * MB), LAYOUT, with_memory=True
    ),
    "everything.json": EVERYTHING.to_json,
    "everything.md": EVERYTHING.to_markdown,
    "holding.json": HOLDING.to_json,
    "growing.json": LEAKING.to_json,
    "screen_loop.txt": RUN.report,
    "screen_device.txt": BUSY.report,
    "screen_ran_out.txt": lambda: ran_out(2048 * MB).report(),
    "screen_ran_out_small.txt": lambda: ran_out(2 * MB).report(),
    "screen_went_on.txt": lambda: ran_out(2048 * MB, steps_after=1).report(),
    "screen_peak.txt": lambda: contrastive().report(),
    "screen_growing.txt": LEAKING.report,
    "screen_kernels.txt": TRACED.report,
    "full_growing.txt": lambda: LEAKING.report(full=True),
    "full_kernels.txt": lambda: TRACED.report(full=True),
    "full_loop.txt": lambda: RUN.report(full=True),
    "full_memory.txt": lambda: ALLOCATING.report(full=True),
    "full_ran_out.txt": lambda: ran_out(2048 * MB).report(full=True),
    "full_trained.txt": lambda: TRAINED.report(full=True),
    "full_rates.txt": lambda: replace(
        with_fields(COUNTED, step_times=StepTimes(later=buckets([50 * MS] * 2))),
        peak=Peak(240_000_000, "given as peak_flops"),
        items=64,
    ).report(full=True),
    "page_holding.txt": lambda: "\n".join(blocks_of(page_document(HOLDING).blocks)),
    "page_kernels.txt": lambda: "\n".join(blocks_of(page_document(TRACED).blocks)),
}
