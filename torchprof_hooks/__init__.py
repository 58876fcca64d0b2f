"""Where do the time and memory of a PyTorch program go, per module and per function,
forward and backward?

Public names are imported at their first use, so that no program waits for unused ones.
"""

import os

from torchprof_hooks.version import __version__

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from torchprof_hooks import function_hooks, link_hooks
    from torchprof_hooks.capture.functions.function_call import FunctionCall
    from torchprof_hooks.capture.tracking.callbacks import LinkCall
    from torchprof_hooks.class_profiler import profiled
    from torchprof_hooks.comparison import Comparison, compare
    from torchprof_hooks.documents.utilisation import Utilisation
    from torchprof_hooks.function_hook import FunctionHook
    from torchprof_hooks.function_profiler import profile_function, region
    from torchprof_hooks.link_hook import LinkHook
    from torchprof_hooks.profile_type import Profile
    from torchprof_hooks.profiler import Profiler, profile
    from torchprof_hooks.profiles.batch import BatchFit, FasterOwner, largest_batch
    from torchprof_hooks.profiles.changes import Change, Together
    from torchprof_hooks.profiles.collectives import Collective
    from torchprof_hooks.profiles.errors import (
        FlagError,
        MemoryUnavailableError,
        ProfileFileError,
        ProfilerError,
    )
    from torchprof_hooks.profiles.measured_steps import MeasuredSteps
    from torchprof_hooks.profiles.memory import (
        GrowingMemory,
        HeldMemory,
        MemoryFailure,
        MemorySummary,
        MemoryTotals,
    )
    from torchprof_hooks.profiles.memory_step import (
        Checkpointing,
        MemoryPoint,
        MemoryStep,
    )
    from torchprof_hooks.profiles.modules import ModuleInfo
    from torchprof_hooks.profiles.parts import Part
    from torchprof_hooks.profiles.peak import Peak
    from torchprof_hooks.profiles.program import Program
    from torchprof_hooks.profiles.provenance import Coordinate, Provenance
    from torchprof_hooks.profiles.ranks.inputs import RankInputs
    from torchprof_hooks.profiles.ranks.rank import OwnTime, Rank
    from torchprof_hooks.profiles.ranks.ranks import StaleRank
    from torchprof_hooks.profiles.ranks.skew import RankCollective, SkewRow
    from torchprof_hooks.profiles.ranks.verdict import Reason, Verdict
    from torchprof_hooks.profiles.rows import Row
    from torchprof_hooks.profiles.step_history import (
        PhaseOfStep,
        SlowStep,
        StepHistory,
        Stretch,
    )
    from torchprof_hooks.profiles.step_times import Bucket, StepTimes
    from torchprof_hooks.profiles.totals import Totals
    from torchprof_hooks.profiles.trace.device_idle import IdleRow
    from torchprof_hooks.profiles.trace.device_step import DeviceStep, DeviceUse
    from torchprof_hooks.profiles.trace.kernels import Kernel, KernelRow
    from torchprof_hooks.profiles.tree import Node
    from torchprof_hooks.program.startup import enable
    from torchprof_hooks.ranks import Ranks, load_ranks
    from torchprof_hooks.registration import add_hook, delete_hook
    from torchprof_hooks.session.profiler_hook import ProfilerHook
    from torchprof_hooks.session.small_hooks import ReportHook, StepTimerHook
    from torchprof_hooks.session.training_session import (
        RunArgs,
        RunContext,
        RunValues,
        SessionHook,
        TrainingSession,
    )
    from torchprof_hooks.session.trigger_timer import SecondOrStepTimer

__all__ = [
    "BatchFit",
    "Bucket",
    "Change",
    "Checkpointing",
    "Collective",
    "Comparison",
    "Coordinate",
    "DeviceStep",
    "DeviceUse",
    "FasterOwner",
    "FlagError",
    "FunctionCall",
    "FunctionHook",
    "GrowingMemory",
    "HeldMemory",
    "IdleRow",
    "Kernel",
    "KernelRow",
    "LinkCall",
    "LinkHook",
    "MeasuredSteps",
    "MemoryFailure",
    "MemoryPoint",
    "MemoryStep",
    "MemorySummary",
    "MemoryTotals",
    "MemoryUnavailableError",
    "ModuleInfo",
    "Node",
    "OwnTime",
    "Part",
    "Peak",
    "PhaseOfStep",
    "Profile",
    "ProfileFileError",
    "Profiler",
    "ProfilerError",
    "ProfilerHook",
    "Program",
    "Provenance",
    "Rank",
    "RankCollective",
    "RankInputs",
    "Ranks",
    "Reason",
    "ReportHook",
    "Row",
    "RunArgs",
    "RunContext",
    "RunValues",
    "SecondOrStepTimer",
    "SessionHook",
    "SkewRow",
    "SlowStep",
    "StaleRank",
    "StepHistory",
    "StepTimerHook",
    "StepTimes",
    "Stretch",
    "Together",
    "Totals",
    "TrainingSession",
    "Utilisation",
    "Verdict",
    "__version__",
    "add_hook",
    "compare",
    "delete_hook",
    "enable",
    "function_hooks",
    "largest_batch",
    "link_hooks",
    "load_ranks",
    "profile",
    "profile_function",
    "profiled",
    "region",
]

#: Module -> public names that it defines.
_HOMES = {
    "capture.functions.function_call": ("FunctionCall",),
    "capture.tracking.callbacks": ("LinkCall",),
    "class_profiler": ("profiled",),
    "comparison": ("Comparison", "compare"),
    "function_hook": ("FunctionHook",),
    "function_profiler": ("profile_function", "region"),
    "link_hook": ("LinkHook",),
    "profiler": ("Profiler", "profile"),
    "profiles.batch": ("BatchFit", "FasterOwner", "largest_batch"),
    "profiles.collectives": ("Collective",),
    "profiles.changes": ("Change", "Together"),
    "profiles.errors": (
        "FlagError",
        "MemoryUnavailableError",
        "ProfileFileError",
        "ProfilerError",
    ),
    "profiles.parts": ("Part",),
    "profiles.peak": ("Peak",),
    "profiles.measured_steps": ("MeasuredSteps",),
    "profiles.program": ("Program",),
    "profiles.memory": (
        "GrowingMemory",
        "HeldMemory",
        "MemoryFailure",
        "MemorySummary",
        "MemoryTotals",
    ),
    "profiles.memory_step": ("Checkpointing", "MemoryPoint", "MemoryStep"),
    "profiles.modules": ("ModuleInfo",),
    "profile_type": ("Profile",),
    "profiles.provenance": ("Coordinate", "Provenance"),
    "profiles.ranks.inputs": ("RankInputs",),
    "profiles.ranks.rank": ("OwnTime", "Rank"),
    "profiles.ranks.ranks": ("StaleRank",),
    "ranks": ("Ranks", "load_ranks"),
    "profiles.ranks.skew": ("RankCollective", "SkewRow"),
    "profiles.ranks.verdict": ("Reason", "Verdict"),
    "profiles.rows": ("Row",),
    "profiles.step_history": ("PhaseOfStep", "SlowStep", "StepHistory", "Stretch"),
    "profiles.step_times": ("Bucket", "StepTimes"),
    "profiles.trace.device_idle": ("IdleRow",),
    "profiles.trace.device_step": ("DeviceStep", "DeviceUse"),
    "profiles.trace.kernels": ("Kernel", "KernelRow"),
    "profiles.totals": ("Totals",),
    "profiles.tree": ("Node",),
    "documents.utilisation": ("Utilisation",),
    "program.startup": ("enable",),
    "registration": ("add_hook", "delete_hook"),
    "session.profiler_hook": ("ProfilerHook",),
    "session.small_hooks": ("ReportHook", "StepTimerHook"),
    "session.training_session": (
        "RunArgs",
        "RunContext",
        "RunValues",
        "SessionHook",
        "TrainingSession",
    ),
    "session.trigger_timer": ("SecondOrStepTimer",),
}


def __getattr__(name: str) -> "Any":
    if name in ("function_hooks", "link_hooks"):
        return _imported(name)
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(_imported(home), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _imported(name: str) -> "Any":
    """Import the module of that name. What modules define is no garbage, and to search
    it for garbage would be a tenth of the time of importing."""
    from importlib import import_module

    from torchprof_hooks.files.collector import without_collections

    with without_collections():
        return import_module(f"{__name__}.{name}")


def load_ipython_extension(ipython: "Any") -> None:
    """Add the magic ``%%torchprof``. IPython calls this at ``%load_ext
    torchprof_hooks``."""
    from torchprof_hooks.integrations.notebook import load

    load(ipython)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "TORCHPROF_HOOKS_FLAGS" in os.environ:
    from time import perf_counter_ns

    _began_ns = perf_counter_ns()
    from torchprof_hooks.program.startup import begin_from_environment

    begin_from_environment(os.environ, _began_ns)
