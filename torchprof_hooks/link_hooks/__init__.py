"""Ready-made hooks on modules."""

from torchprof_hooks.hooks.tables import MemoryHookSummary, TimerSummary
from torchprof_hooks.link_hooks.memory import MemoryProfileHook
from torchprof_hooks.link_hooks.nvtx import NvtxHook
from torchprof_hooks.link_hooks.timer import TimerHook

__all__ = [
    "MemoryHookSummary",
    "MemoryProfileHook",
    "NvtxHook",
    "TimerHook",
    "TimerSummary",
]
