"""What stored profiles do not have: several functions of a program, devices, operations
and their rates, memory that grows or has run out, modules with two names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.build import MS, after, buckets, with_fields
from tests.documents.runs import ALLOCATING, BUSY, COUNTED
from tests.documents.test_compilation import SUMMARY
from tests.documents.test_exit_report import PROGRAM, START_UP
from tests.documents.test_memory_growth import GROWING, profile_with
from tests.documents.test_memory_told import TWICE, contrastive, ran_out
from tests.profiles.test_collectives import ALL
from torchprof_hooks.documents.build.exit_report import ExitLayout
from torchprof_hooks.documents.build.memory import growth_table
from torchprof_hooks.documents.document import Document
from torchprof_hooks.documents.render.text import text_of
from torchprof_hooks.documents.report import program_text
from torchprof_hooks.profiles.measured_steps import MeasuredSteps
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.peak import Peak
from torchprof_hooks.profiles.program import Program
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.trace.device_step import DeviceStep

MB: Final = 1024**2


def _program() -> str:
    """Everything that a report of a program may have."""
    program = Program("train.py", 3000 * MS, SUMMARY)
    shared = {"Net.b": ModuleInfo("Linear", aliases=("Net.again",))}
    run = replace(
        after(START_UP, PROGRAM),
        program=program,
        modules={**START_UP.modules, **PROGRAM.modules, **shared},
        overhead_ns=7 * MS,
        devices=("cuda:0",),
        measured=MeasuredSteps(traced=2, traced_ns=500 * MS),
        collectives=ALL,
        device_step=DeviceStep(reason="no step was traced"),
    )
    return program_text(run, ExitLayout(n_ops=3, n_apply=2), with_memory=True)


CASES: Final[dict[str, Callable[[], str]]] = {
    "theano_parts.txt": _program,
    "screen_device.txt": BUSY.report,
    "screen_ran_out.txt": lambda: ran_out(2048 * MB, TWICE).report(),
    "screen_peak.txt": lambda: contrastive(TWICE).report(),
    "screen_growing.txt": lambda: profile_with(*GROWING).report(),
    "full_growing.txt": lambda: text_of(
        Document("", "", [], [*growth_table(profile_with(*GROWING))])
    ),
    "full_memory.txt": lambda: ALLOCATING.report(full=True),
    "full_rates.txt": lambda: replace(
        with_fields(COUNTED, step_times=StepTimes(later=buckets([50 * MS] * 2))),
        peak=Peak(240_000_000, "given as peak_flops"),
        items=64,
    ).report(full=True),
}
