"""Ready-made hooks on modules."""

from torchprof_hooks.link_hooks.timer import TimerHook

__all__ = ["TimerHook"]
