"""The hooks that are active in a thread, by name."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchprof_hooks.capture.attach.blocks import Block


class _ThreadWide(threading.local):
    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self.function_blocks: dict[str, Block] = {}


_thread_wide = _ThreadWide()


def blocks_of_thread() -> dict[str, Block]:
    """The blocks of the hooks that are active for all modules in the running thread."""
    return _thread_wide.blocks


def function_blocks_of_thread() -> dict[str, Block]:
    """The same for hooks on functions."""
    return _thread_wide.function_blocks


def check_free(name: str, taken: object) -> None:
    """Raise KeyError if a hook called `name` is there already."""
    if taken is not None:
        raise KeyError(
            f"hook {name!r} already exists: delete it first, or give this one "
            "another name"
        )


def check_known(name: str, taps: Mapping[str, object]) -> None:
    """Raise KeyError, with the names that there are, if none of `taps` has this one."""
    if name not in taps:
        known = ", ".join(map(repr, taps)) or "none"
        raise KeyError(f"no hook {name!r} here; the registered ones: {known}")
