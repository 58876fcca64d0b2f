"""Where do the time and memory of a PyTorch program go, per module and per function,
forward and backward?

Public names are imported when they are first used: nobody waits for what stays unused.
"""

import os

from torchprof_hooks.version import __version__

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from torchprof_hooks import function_hooks, link_hooks
    from torchprof_hooks.capture.function_call import FunctionCall
    from torchprof_hooks.capture.link_call import LinkCall
    from torchprof_hooks.class_profiler import profiled
    from torchprof_hooks.function_hook import FunctionHook
    from torchprof_hooks.function_profiler import profile_function
    from torchprof_hooks.link_hook import LinkHook
    from torchprof_hooks.profiler import Profiler, profile
    from torchprof_hooks.profiles.profile import Profile
    from torchprof_hooks.program.startup import enable
    from torchprof_hooks.registration import add_hook, delete_hook
    from torchprof_hooks.session.profiler_hook import ProfilerHook
    from torchprof_hooks.session.report import ReportHook
    from torchprof_hooks.session.session_hook import (
        RunArgs,
        RunContext,
        RunValues,
        SessionHook,
    )
    from torchprof_hooks.session.step_timer import StepTimerHook
    from torchprof_hooks.session.stop_at_step import StopAtStepHook
    from torchprof_hooks.session.training_session import TrainingSession
    from torchprof_hooks.session.trigger_timer import SecondOrStepTimer

__all__ = [
    "FunctionCall",
    "FunctionHook",
    "LinkCall",
    "LinkHook",
    "Profile",
    "Profiler",
    "ProfilerHook",
    "ReportHook",
    "RunArgs",
    "RunContext",
    "RunValues",
    "SecondOrStepTimer",
    "SessionHook",
    "StepTimerHook",
    "StopAtStepHook",
    "TrainingSession",
    "__version__",
    "add_hook",
    "delete_hook",
    "enable",
    "function_hooks",
    "link_hooks",
    "profile",
    "profile_function",
    "profiled",
]

_HOMES = {
    "FunctionCall": "capture.function_call",
    "FunctionHook": "function_hook",
    "LinkCall": "capture.link_call",
    "LinkHook": "link_hook",
    "Profile": "profiles.profile",
    "Profiler": "profiler",
    "ProfilerHook": "session.profiler_hook",
    "ReportHook": "session.report",
    "RunArgs": "session.session_hook",
    "RunContext": "session.session_hook",
    "RunValues": "session.session_hook",
    "SecondOrStepTimer": "session.trigger_timer",
    "SessionHook": "session.session_hook",
    "StepTimerHook": "session.step_timer",
    "StopAtStepHook": "session.stop_at_step",
    "TrainingSession": "session.training_session",
    "add_hook": "registration",
    "delete_hook": "registration",
    "enable": "program.startup",
    "profile": "profiler",
    "profile_function": "function_profiler",
    "profiled": "class_profiler",
}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name in ("function_hooks", "link_hooks"):
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "TORCHPROF_HOOKS_FLAGS" in os.environ:
    from torchprof_hooks.program.startup import begin_from_environment

    begin_from_environment(os.environ)
