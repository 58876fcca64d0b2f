"""The section Memory Profile: peaks, and which operations return the most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Final

from torchprof_hooks.profiles.names import OUTSIDE_NAME, Phase
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.profiles.trace.memory_replay import (
    DeviceReplay,
    MemoryReplay,
    OutputRow,
)
from torchprof_hooks.profiles.trace.step_outputs import Output
from torchprof_hooks.reports.memory_tree import heading
from torchprof_hooks.reports.table import plural
from torchprof_hooks.reports.units import best_byte_format

_HEADERS: Final = (
    "<sum of outputs>",
    "<#call>",
    "<outputs>",
    "<created/inplace/view>",
    "<phase>",
    "<operation, by the module around it>",
)
#: Characters up to which the column of outputs is aligned.
_WIDEST_OUTPUTS: Final = 40
#: Outputs, or runs of equal ones, that are shown of an operation.
_OUTPUTS_SHOWN: Final = 3

_CAVEATS: Final = (
    "Left out of the replay: what was there before the step, and what an operation "
    "frees itself (an autograd node, a custom Function or a compiled region is one).",
    "c: created, i: written in place, v: view, as torch declares; ?: not taken by any "
    "operation, so not known.",
)


def memory_lines(
    program: ProgramProfile, max_rows: int, min_size: int
) -> Iterator[str]:
    """The lines of the section, the operations with the largest outputs first.

    max_rows: lines of the table, at most.
    min_size: bytes below which outputs are not shown.
    """
    profile, replay = program.whole, program.replay
    measured = "memory was not measured"
    if profile.memory is not None:
        measured = heading(profile, profile.memory)
    yield f"   {measured}"
    if replay is None:
        reason = f": {program.not_replayed}" if program.not_replayed else ""
        yield f"   No step was replayed{reason}"
        return
    yield from _peaks(replay)
    rows = [row for row in replay.rows if row.size_bytes >= min_size][:max_rows]
    if rows:
        yield from _table(rows)
    elif replay.rows:
        least = best_byte_format(min_size)
        yield f"   (the outputs of every operation are less than {least})"
    if rest := replay.rows[len(rows) :]:
        yield f"   {_remainder(rest)}"
    yield from _notes(replay)


def _place(name: str, phase: Phase) -> str:
    """A place with its phase, if the name does not tell that."""
    return name if name.startswith("(") else f"{name} ({phase})"


def _peaks(replay: MemoryReplay) -> Iterator[str]:
    yield f"   Peak of the outputs of operations in step {replay.step}, replayed:"
    for device in replay.devices:
        indent = " " * len(device.device)
        as_run, without_inplace, without_freeing = map(
            best_byte_format,
            (
                device.as_run_bytes,
                device.without_inplace_bytes,
                device.without_freeing_bytes,
            ),
        )
        yield f"     {device.device}: {as_run} as it ran{_set_by(device)}"
        yield f"     {indent}  {without_inplace} if writes in place made new tensors"
        yield f"     {indent}  {without_freeing} if nothing was freed"
    if not replay.devices:
        yield "     no operation has allocated anything"


def _set_by(device: DeviceReplay) -> str:
    if not device.operation:
        return ""
    name = _operation(device.module, device.operation)
    return f", set by {_place(name, device.phase)}"


def _table(rows: Sequence[OutputRow]) -> Iterator[str]:
    outputs = [_texts(row) for row in rows]
    widest = max(len(each) for each in (_HEADERS[2], *(text for text, _ in outputs)))
    columns = f"{{:>16}} {{:>7}} {{:<{min(widest, _WIDEST_OUTPUTS)}}} {{:<22}} {{:<9}} "
    columns += "{}"
    yield columns.format(*_HEADERS)
    for row, (types, kinds) in zip(rows, outputs, strict=True):
        yield columns.format(
            best_byte_format(row.size_bytes),
            row.times,
            types,
            kinds,
            row.phase,
            _operation(row.module, row.operation),
        )


def _texts(row: OutputRow) -> tuple[str, str]:
    """Types and kinds of outputs: "2 * float32[3], int64[]" and "c, v"."""

    def alike(output: Output) -> tuple[str, str]:
        return str(output.tensor or "?"), output.kind

    runs = [(*each, sum(1 for _ in run)) for each, run in groupby(row.outputs, alike)]
    types = [
        text if times == 1 else f"{times} * {text}"
        for text, _, times in islice(runs, _OUTPUTS_SHOWN)
    ]
    kinds = [kind for _, kind, _ in islice(runs, _OUTPUTS_SHOWN)]
    more = ["..."] if len(runs) > _OUTPUTS_SHOWN else []
    return ", ".join(types + more), ", ".join(kinds + more)


def _operation(module: str, name: str) -> str:
    return name if module == OUTSIDE_NAME else f"{module}: {name}"


def _remainder(rows: Sequence[OutputRow]) -> str:
    count = plural(sum(row.times for row in rows), "operation")
    rest = best_byte_format(sum(row.total_bytes for row in rows))
    return f"... (remaining {count} account for {rest} of outputs)"


def _notes(replay: MemoryReplay) -> Iterator[str]:
    for caveat in _CAVEATS:
        yield f"   {caveat}"
    if replay.unowned_bytes:
        unowned = best_byte_format(replay.unowned_bytes)
        yield f"   {unowned} were allocated by no operation, and are left out as well."
