"""Private names of ``torch.profiler``."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.autograd.profiler
import torch.profiler

from torchprof_hooks.kernel.torch_names import Place

_profiler = getattr(torch._C, "_profiler", None)
_scopes = getattr(_profiler, "RecordScope", None)
_kinds = getattr(_profiler, "_EventType", None)

#: Class of a tensor among the inputs of an event; nothing is one where torch hides it.
TENSOR: Final[type] = getattr(_profiler, "_TensorMetadata", type("NoTensor", (), {}))
#: Scope of ranges that Python code marks: not operations, but what is around them.
USER_SCOPE: Final = getattr(_scopes, "USER_SCOPE", None)
#: Scope of an autograd node's own work.
NODE_SCOPE: Final = getattr(_scopes, "BACKWARD_FUNCTION", None)
#: Kinds of events.
OPERATION: Final = getattr(_kinds, "TorchOp", None)
ALLOCATION: Final = getattr(_kinds, "Allocation", None)

#: Functions of CUDA, HIP, Level Zero and Unified Runtime: cudaLaunchKernel, ...
_DRIVER_CALL: Final = re.compile(r"(cuda|cu|hip|ze|ur)[A-Z]\w*$")


def is_profiler_active() -> bool:
    """Whether a profiler of torch's is running, in any thread, however it was started.
    Assumes not, if torch cannot tell."""
    if getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
        return True
    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return enabled is not None and bool(enabled())


_PROFILER: Final = torch.autograd.profiler
_LEGACY: Final = sys.modules.get("torch.autograd.profiler_legacy")

#: The functions by which Python code prepares and starts profilers; and ends them.
PROFILER_BEGINS: Final = (
    Place(_PROFILER, "_prepare_profiler"),
    Place(_PROFILER, "_enable_profiler"),
    Place(_LEGACY, "_enable_profiler_legacy"),
)
PROFILER_ENDS: Final = (
    Place(_PROFILER, "_disable_profiler"),
    Place(_LEGACY, "_disable_profiler_legacy"),
)

#: The methods that begin and end a range that a program marks for profilers, also if a
#: library has derived a class of its own.
RANGE_BEGINS: Final = Place(_PROFILER.record_function, "__enter__")
RANGE_ENDS: Final = Place(_PROFILER.record_function, "__exit__")


def is_one_prepared() -> bool:
    """Whether a profiler has prepared itself, and has not started yet. This takes some
    milliseconds, as it searches all objects of the program."""
    preparing = torch.profiler.ProfilerAction.WARMUP
    return any(
        found.current_action == preparing and not _has_ended(found)
        for found in gc.get_objects()
        if type(found) is torch.profiler.profile
    )


def _has_ended(profiler: Any) -> bool:
    """Whether the latest recording of `profiler` is over."""
    return _results(profiler) is not None


def make_profiler(with_tensors: bool, with_operations: bool = True) -> Any:
    """A profiler of torch's for everything that this build can see, with `start()`,
    `stop()` and `export_chrome_trace()`. Not `torch.profiler.profile`: that counts the
    steps of the process, and programs may have one.

    with_operations: whether to record operations of the host, at about a microsecond
        each; if not, only what devices run, where this build can see any.
    """
    make = getattr(torch.profiler, "_KinetoProfile", torch.profiler.profile)
    activities = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
    if not with_operations:
        of_host = {torch.profiler.ProfilerActivity.CPU}
        activities = set(activities) - of_host or activities
    return make(
        activities=activities,
        record_shapes=with_tensors,
        profile_memory=with_tensors,  # without it, torch does not number tensors
        acc_events=True,  # else some versions warn that the next start drops events
    )


def stop_profiler(profiler: Any) -> None:
    """Stop it. At once, torch would make objects of all events: only its own tables
    need them, and it takes ten times as long as the step."""
    own = getattr(profiler, "profiler", None)
    if own is not None and hasattr(own, "acc_events"):
        own.acc_events = False
    profiler.stop()


def event_tree(profiler: Any) -> Sequence[Any]:
    """The outermost events of a profiler that has stopped, each with those inside of
    it. Empty if nothing was recorded, or torch hides them."""
    read = getattr(_results(profiler), "experimental_event_tree", None)
    return () if read is None else read()


def system_threads(profiler: Any) -> Mapping[int, int]:
    """The system's number of each thread that ran operations, by the number that the
    profiler gave to it."""
    return {
        event.start_thread_id(): event.device_resource_id()
        for event in flat_events(profiler)
        if activity_type(event) in _ON_THREADS
    }


_ON_THREADS: Final = {"cpu_op", "user_annotation"}


def shows_devices() -> bool:
    """Whether torch shows what devices have run, and what launched it."""
    autograd = getattr(torch._C, "_autograd", None)
    event = getattr(autograd, "_KinetoEvent", None)
    needed = (
        *("device_type", "device_index", "device_resource_id", "name"),
        *("start_ns", "duration_ns", "correlation_id"),
    )
    has_types = hasattr(event, "activity_type") or hasattr(event, "is_user_annotation")
    return has_types and all(
        hasattr(owner, name)
        for owner, name in (
            (getattr(autograd, "_ProfilerResult", None), "events"),
            *((event, name) for name in needed),
        )
    )


def activity_type(event: Any) -> str:
    """The type of an event in `flat_events`, as kineto calls it: "kernel",
    "cuda_runtime", "cpu_op", ... Before torch 2.13, events do not have it: then we
    recognise calls of drivers by their names, which operations (``aten::add``) do not
    have."""
    known = getattr(event, "activity_type", None)
    if known is not None:
        found: str = known()
        return found
    is_on_host = event.device_type().name == "CPU"
    if event.is_user_annotation():
        return "user_annotation" if is_on_host else "gpu_user_annotation"
    if not is_on_host:
        return "kernel"
    return "cuda_runtime" if _DRIVER_CALL.match(event.name()) else "cpu_op"


def flat_events(profiler: Any) -> Sequence[Any]:
    """The events of a profiler that has stopped, also those of devices, in no order.
    Empty if nothing was recorded, or torch hides them."""
    read = getattr(_results(profiler), "events", None)
    return () if read is None else read()


def _results(profiler: Any) -> Any:
    return getattr(getattr(profiler, "profiler", None), "kineto_results", None)
