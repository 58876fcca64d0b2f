"""Tells what was in memory when it ran out, before the exception goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData

#: What the allocator of the CPU says (it raises no class of its own).
_ON_THE_CPU = "can't allocate memory"


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the exception says that there was no memory for a tensor."""
    out_of_memory = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    return isinstance(error, out_of_memory) or (
        isinstance(error, RuntimeError) and _ON_THE_CPU in str(error)
    )


def print_failure(make: Callable[[], ProfileData]) -> None:
    """Print to standard error who had the memory, if that is known, else the peak;
    nothing if memory is not measured. Nothing that goes wrong here replaces the
    exception of the program.

    make: returns the profile.
    """
    with suppress(Exception):
        from torchprof_hooks.documents.build.memory import memory_text
        from torchprof_hooks.documents.build.memory_failure import failure_document
        from torchprof_hooks.documents.render.text import text_of

        profile = make()
        memory = profile.memory
        if memory is None or not memory.source:
            return
        text = f"torchprof_hooks: memory ran out; {memory_text(profile, memory)}"
        if memory.failure is not None:
            text = text_of(failure_document(profile))
        print(text, file=sys.stderr, flush=True)
