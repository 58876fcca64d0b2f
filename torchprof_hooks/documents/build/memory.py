"""What is said of memory: who has it at the peak, who had it when it ran out, and whose
grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from torchprof_hooks.documents.build.findings import times_text
from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Column,
    Document,
    Table,
    Value,
)
from torchprof_hooks.documents.render.units import best_byte_format
from torchprof_hooks.documents.words import KIND_TITLES, kind_name, plural
from torchprof_hooks.profiles.cells import call_site
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.kinds import (
    grouped,
    kinds_of_names,
    layer_around,
)
from torchprof_hooks.profiles.memory import (
    GrowingMemory,
    HeldMemory,
    MemoryFailure,
    MemoryKind,
    MemorySummary,
    bytes_by_kind,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import BACKWARD_NAME, OUTSIDE_NAME, Phase

#: The most kinds that the answer names, owners that a warning does, and rows of a text.
_KINDS_NAMED: Final = 5
_OWNERS_NAMED: Final = 2
_MOST_OWNERS: Final = 12
#: The description of a module that was not called.
_NOT_CALLED: Final = ModuleInfo()
#: Layers that have at least this share of a kind are named with it.
_MUCH: Final = 0.5
#: From such a part of all that was in use on, what was asked for is itself the reason.
LARGE_REQUEST: Final = 0.5

H = TypeVar("H", bound=HeldMemory)


# Owners


@dataclass(frozen=True)
class Owner(Generic[H]):
    """A module, with other layers of its kind; or what is no module.

    label: ``Net.blocks.*.norm: 4 Norm``; of a single layer, its own name.
        ``Net.blocks.*: 4 Block in Net#2``: if all is of another outermost call than of
        the model that they are named after.
    held: its memory.
    kinds: the bytes by kind: what it has, or what is added in a step.
    """

    label: str
    held: Sequence[H]
    kinds: Counter[MemoryKind]

    @property
    def total(self) -> int:
        """The bytes of all kinds."""
        return self.kinds.total()


def owners_of(profile: ProfileData, every: Iterable[H]) -> list[Owner[H]]:
    """Who has this memory, or whose grows: most first."""
    owned = [(module_of(profile, held), held) for held in every]
    if not owned:
        return []
    kind_of_name = kinds_of_names(profile.modules)
    groups = grouped(owned, lambda each: kind_of_name(each[0]))
    found = []
    for layers, alike in groups.items():
        kinds: Counter[MemoryKind] = Counter()
        for _, held in alike:
            kinds[held.kind] += (
                held.bytes_per_step if isinstance(held, GrowingMemory) else held.bytes
            )
        names = {name for name, _ in alike}
        calls = {_by_another(profile, *each) for each in alike}
        label = layers.label(names) + (calls.pop() if len(calls) == 1 else "")
        found.append(Owner(label, [held for _, held in alike], kinds))
    return sorted(found, key=lambda owner: (-owner.total, owner.label))


def _by_another(profile: ProfileData, name: str, one: HeldMemory) -> str:
    """`` in Net#2``: another outermost call, if that of a module had the memory."""
    model = one.path[0] if one.path else ""
    is_module = profile.modules.get(model, _NOT_CALLED).kind == "module"
    is_own = f"{name}.".startswith(f"{model}.")
    return f" in {model}" if is_module and not is_own else ""


def module_of(profile: ProfileData, held: HeldMemory) -> str:
    """The module, or what else is no function, that has the memory: the functions that
    it calls have it for the module."""
    for name in reversed(held.path):
        if profile.modules.get(name, _NOT_CALLED).kind != "function":
            return name
    return BACKWARD_NAME if held.phase == "backward" else OUTSIDE_NAME


def place_of(profile: ProfileData, path: tuple[str, ...], phase: Phase) -> str:
    """A call and its phase: ``Net.head: linear(8x4, 4x4) (backward)``."""
    if not path:
        return OUTSIDE_NAME
    infos = {name: profile.modules.get(name, _NOT_CALLED) for name in path}
    is_call = infos[path[-1]].kind in ("module", "function")
    return call_site(path, infos) + f" ({phase})" * is_call


def peak_owner(profile: ProfileData, memory: MemorySummary) -> str:
    """What ran when most memory was in use: ``Net.head (backward)``."""
    return place_of(profile, memory.peak_path, memory.peak_phase)


def kind_column(kind: MemoryKind, sizes: Sequence[int]) -> Column:
    """The bytes of one kind."""
    return Column(KIND_TITLES[kind], "bytes", sizes, kind_name(kind))


def _owner_table(
    name: str, title: str, owners: Sequence[Owner[H]], columns: Sequence[Column]
) -> Table:
    """A row for each owner, with layers of a kind in one."""
    whole = max(sum(owner.total for owner in owners), 1)
    shares = [owner.total / whole for owner in owners]
    return Table(
        name,
        title,
        "owner",
        [owner.label for owner in owners],
        [*columns, Column("%", "share", shares, "share")],
        most=_MOST_OWNERS,
        left_out="{count} more owners, {share}",
        shares=shares,
    )


def _table_by_kind(
    profile: ProfileData, name: str, title: str, held: Sequence[HeldMemory]
) -> Table:
    """Who has what: a column for each kind."""
    owners = owners_of(profile, held)
    columns = [
        kind_column(kind, [owner.kinds[kind] for owner in owners])
        for kind in bytes_by_kind(held)
    ]
    totals = Column("total", "bytes", [owner.total for owner in owners], "bytes")
    return _owner_table(name, title, owners, [*columns, totals])


def _texts_by_kind(held: Iterable[HeldMemory]) -> list[str]:
    """``activations 33.53MB``, most first."""
    return [
        f"{KIND_TITLES[kind]} {best_byte_format(size)}"
        for kind, size in bytes_by_kind(held).items()
    ]


# The peak


def peak_answer(profile: ProfileData, next_step: str) -> Answer | None:
    """Who had most of the memory when most was in use, and what it was; None if that is
    not known. next_step: what shows more."""
    memory = profile.memory
    if memory is None or not memory.at_peak:
        return None
    kinds, ran = memory.bytes_by_kind(), peak_owner(profile, memory)
    owner, *_ = owners_of(profile, memory.at_peak)
    numbers: dict[str, Value] = {
        "peak_bytes": memory.peak_bytes,
        "owner": ran,
        "phase": memory.peak_phase,
        **{kind_name(kind): size for kind, size in kinds.items()},
        "most_owner": owner.label,
        "most_owner_bytes": owner.total,
    }
    parts = _texts_by_kind(memory.at_peak)
    who = f"most in {owner.label}, {best_byte_format(owner.total)}; "
    if layers := _layers_text(profile, memory, next(iter(kinds))):
        parts[0] += f" ({layers})"
        who = ""
    return Answer(
        "memory_peak",
        f"Most memory ({memory.source.replace('cpu', 'CPU')})",
        best_byte_format(memory.peak_bytes),
        evidence=f"{who}{', '.join(parts[:_KINDS_NAMED])}; when {ran} ran",
        numbers=numbers,
        next_step=next_step,
    )


def _layers_text(profile: ProfileData, memory: MemorySummary, kind: MemoryKind) -> str:
    """``4 x 8.03MB in Net.blocks.*: Block``, if most memory of a kind is in layers that
    are alike; if these do not all have as much, which of them has most; or ""."""
    total, sizes = 0, Counter[str]()
    for held in memory.at_peak:
        if held.kind == kind:
            total += held.bytes
            if layer := layer_around(module_of(profile, held)):
                sizes[layer] += held.bytes
    groups = grouped(sizes, kinds_of_names(profile.modules))
    for layers, names in groups.items():
        whole = sum(sizes[name] for name in names)
        if len(names) == 1 or whole < _MUCH * total:
            continue
        texts = {best_byte_format(sizes[name]) for name in names}
        if len(texts) == 1:
            where = ": ".join(filter(None, layers))
            return f"{len(names)} x {texts.pop()} in {where}"
        most = max(names, key=sizes.__getitem__)
        return (
            f"{best_byte_format(whole)} in {layers.label(names)}, of which "
            f"{best_byte_format(sizes[most])} in {most}"
        )
    return ""


def peak_table(profile: ProfileData) -> Iterator[Table]:
    """Who had what when most was in use; nothing if it is not known."""
    if profile.memory and profile.memory.at_peak:
        title = "Memory in use at the peak, by owner"
        held = profile.memory.at_peak
        yield _table_by_kind(profile, "memory_at_peak", title, held)


def memory_text(profile: ProfileData, memory: MemorySummary) -> str:
    """The peak, the call in which it was, and the device: ``peak 1.25GB in Net.head
    (backward), of cuda:0``; or why it is not known."""
    if not memory.source:
        return f"not measured: {memory.unavailable}"
    peak = best_byte_format(memory.peak_bytes)
    source = memory.source.replace("cpu", "tensors on the CPU")
    text = f"peak {peak} in {peak_owner(profile, memory)}, of {source}"
    if memory.unavailable:
        text += f"; in a part of the run it was not measured: {memory.unavailable}"
    return text


# When it ran out


def failure_of(profile: ProfileData) -> MemoryFailure | None:
    """When there was no memory, and the program did not go on; None if there always
    was, or if whole steps came after it."""
    failure = profile.memory.failure if profile.memory else None
    return None if failure is None or failure.steps_after else failure


def failure_notes(profile: ProfileData) -> Iterator[str]:
    """That memory ran out, and the program went on."""
    failure = profile.memory.failure if profile.memory else None
    if failure is not None and failure.steps_after:
        asked = best_byte_format(failure.requested_bytes)
        where = place_of(profile, failure.path, failure.phase)
        steps = plural(failure.steps_after, "whole step")
        yield f"memory ran out, {asked} for {where}; {steps} came after that"


def failure_warnings(profile: ProfileData) -> Iterator[str]:
    """That memory ran out: for whom, with what in use, and whether it grew before."""
    memory, failure = profile.memory, failure_of(profile)
    if memory is None or failure is None:
        return
    asked, held = map(best_byte_format, (failure.requested_bytes, failure.held_bytes))
    where = place_of(profile, failure.path, failure.phase)
    text = f"Memory ran out: {asked} for {where}, "
    if failure.times >= LARGE_REQUEST:
        text += f"{times_text(failure.times)} all that was in use, {held}"
    else:
        text += f"with {held} in use"
    if kinds := ", ".join(_texts_by_kind(failure.held)):
        text += f": {kinds}"
    if memory.step_peaks:
        peaks = ", ".join(map(best_byte_format, memory.step_peaks))
        text += f"; most in each of the last steps: {peaks}"
    elif memory.peak_bytes > failure.held_bytes:
        text += f"; before, at most {best_byte_format(memory.peak_bytes)}"
    yield text


def failure_table(profile: ProfileData) -> Iterator[Table]:
    """What was refused, and who had what then; nothing if memory did not run out, or
    if the program went on."""
    failure = failure_of(profile)
    if failure is None:
        return
    title = "Memory in use when it ran out, by owner"
    found = _table_by_kind(profile, "memory_at_failure", title, failure.held)
    nothing: list[int | None] = [None]
    refused = [failure.requested_bytes, *[0] * len(found.labels)]
    yield replace(
        found,
        labels=[place_of(profile, failure.path, failure.phase), *found.labels],
        columns=[
            Column("refused", "bytes", refused, "refused_bytes"),
            *(replace(c, values=[*nothing, *c.values]) for c in found.columns),
        ],
        shares=[0.0, *found.shares],
        most=found.most + 1,
        notes=["refused: what was asked for, and is in none of the others"],
    )


def failure_document(profile: ProfileData) -> Document:
    """What is printed when memory has run out."""
    warnings = Answers([], [*failure_warnings(profile)])
    return Document("profile", "memory", [], [warnings, *failure_table(profile)])


# What grows


def grown(profile: ProfileData) -> list[Owner[GrowingMemory]]:
    """Whose memory grows: the bytes of a step, most first."""
    return owners_of(profile, profile.memory.growing if profile.memory else ())


def grown_kinds(profile: ProfileData) -> Counter[MemoryKind]:
    """What grows: the bytes of a step, by kind."""
    return sum((owner.kinds for owner in grown(profile)), Counter[MemoryKind]())


def _kinds(added: Counter[MemoryKind]) -> str:
    return ", ".join(KIND_TITLES[kind] for kind, _ in added.most_common())


def _since(every: Iterable[GrowingMemory]) -> int:
    return min(one.since_step for one in every)


def growth_warnings(profile: ProfileData) -> Iterator[str]:
    """That memory grows: how much, since when, and whose."""
    owners, added = grown(profile), grown_kinds(profile)
    if not owners or profile.memory is None:
        return
    shown = owners[:_OWNERS_NAMED]
    named = [f"{one.label} {best_byte_format(one.total)}" for one in shown]
    if more := len(owners) - len(shown):
        named.append(f"{more} more")
    since = _since(profile.memory.growing)
    yield (
        f"Memory grows by {best_byte_format(added.total())} a step since step {since}: "
        f"{', '.join(named)} ({_kinds(added)})"
    )


def growth_table(profile: ProfileData) -> Iterator[Table]:
    """Whose memory grows, and what of it; nothing if none does."""
    owners = grown(profile)
    if not owners:
        return
    in_use = [sum(one.bytes for one in owner.held) for owner in owners]
    since = [_since(owner.held) for owner in owners]
    columns = [
        Column("kind", "text", [_kinds(owner.kinds) for owner in owners], "kinds"),
        Column("a step", "bytes", [one.total for one in owners], "bytes_per_step"),
        Column("in use", "bytes", in_use, "bytes"),
        Column("since step", "count", since, "since_step"),
    ]
    title = "Memory that grows with each step, by owner"
    note = (
        "A cache that is still filling, and what is collected in an epoch, look the "
        "same"
    )
    found = _owner_table("memory_growth", title, owners, columns)
    yield replace(found, notes=[note])
