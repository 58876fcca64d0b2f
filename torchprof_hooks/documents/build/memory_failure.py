"""What is said if memory has run out: for whom, with what in use, and what helps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from torchprof_hooks.documents.build.findings import times_text
from torchprof_hooks.documents.build.memory import owner_table, place_of
from torchprof_hooks.documents.document import (
    Answers,
    Block,
    Column,
    Document,
    Table,
)
from torchprof_hooks.documents.render.units import best_byte_format
from torchprof_hooks.documents.words import KIND_TITLES
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.memory import MemoryFailure, bytes_by_kind

#: From such a part of all that was in use on, what was asked for is itself the reason.
LARGE_REQUEST: Final = 0.5
#: What goes before all else, in this order.
_FIRST: Final = ("answers", "memory_at_failure", "tips", "memory", "checkpointing")


def failure_of(profile: ProfileData) -> MemoryFailure | None:
    """When there was no memory; None if there always was."""
    return profile.memory.failure if profile.memory else None


def failure_warnings(profile: ProfileData) -> Iterator[str]:
    """That memory ran out: for whom, with what in use, and whether it grew before."""
    memory, failure = profile.memory, failure_of(profile)
    if memory is None or failure is None:
        return
    asked, held = map(best_byte_format, (failure.requested_bytes, failure.held_bytes))
    text = f"Memory ran out: {asked} for {place_of_failure(profile, failure)}, "
    if is_large(failure):
        text += f"{times_of_failure(failure)} all that was in use, {held}: "
    else:
        text += f"with {held} in use: "
    text += ", ".join(
        f"{KIND_TITLES[kind]} {best_byte_format(size)}"
        for kind, size in bytes_by_kind(failure.held).items()
    )
    if memory.step_peaks:
        peaks = ", ".join(map(best_byte_format, memory.step_peaks))
        text += f"; most in each of the last steps: {peaks}"
    elif memory.peak_bytes > failure.held_bytes:
        text += f"; before, at most {best_byte_format(memory.peak_bytes)}"
    yield text


def failure_document(profile: ProfileData) -> Document:
    """What is printed when memory has run out."""
    warnings = Answers([], [*failure_warnings(profile)])
    return Document("profile", "memory", [], [warnings, *failure_table(profile)])


def failure_table(profile: ProfileData) -> Iterator[Table]:
    """What was refused, and who had what then; nothing if memory did not run out."""
    failure = failure_of(profile)
    if failure is None:
        return
    title = "Memory in use when it ran out, by owner"
    held = owner_table(profile, "memory_at_failure", title, failure.held)
    refused = Column("refused", "bytes", [0] * len(held.labels), "refused_bytes")
    values: list[int | None] = [failure.requested_bytes]
    columns = [replace(refused, values=[*values, *refused.values])] + [
        replace(column, values=[None, *column.values]) for column in held.columns
    ]
    yield replace(
        held,
        labels=[place_of_failure(profile, failure), *held.labels],
        columns=columns,
        shares=[0.0, *held.shares],
        most=held.most + 1,
        notes=["refused: what was asked for, and is in none of the others"],
    )


def memory_first(profile: ProfileData, blocks: Iterable[Block]) -> list[Block]:
    """The blocks, those about memory first, and each once, if memory ran out."""
    if failure_of(profile) is None:
        return [*blocks]

    def rank(block: Block) -> int:
        name = "memory" if block.name.startswith("memory") else block.name
        name = block.name if block.name in _FIRST else name
        return _FIRST.index(name) if name in _FIRST else len(_FIRST)

    once = {block.name: block for block in blocks}
    return sorted(once.values(), key=rank)


def place_of_failure(profile: ProfileData, failure: MemoryFailure) -> str:
    """Where memory ran out: the call, and its phase."""
    return place_of(profile, failure.path, failure.phase)


def is_large(failure: MemoryFailure) -> bool:
    """Whether what was asked for is itself the reason."""
    return failure.requested_bytes >= LARGE_REQUEST * failure.held_bytes


def times_of_failure(failure: MemoryFailure) -> str:
    """How many times all that was in use was asked for: ``34x``."""
    return times_text(failure.requested_bytes / max(failure.held_bytes, 1))
