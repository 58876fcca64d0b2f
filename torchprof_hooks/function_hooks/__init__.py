"""Ready-made hooks on functions."""

from torchprof_hooks.function_hooks.debug_print import PrintHook
from torchprof_hooks.function_hooks.memory import MemoryProfileHook
from torchprof_hooks.function_hooks.nvtx import NvtxHook
from torchprof_hooks.function_hooks.timer import TimerHook
from torchprof_hooks.hooks.tables import MemoryHookSummary, TimerSummary

__all__ = [
    "MemoryHookSummary",
    "MemoryProfileHook",
    "NvtxHook",
    "PrintHook",
    "TimerHook",
    "TimerSummary",
]
