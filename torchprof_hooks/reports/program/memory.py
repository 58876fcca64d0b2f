"""The section Memory Profile: peaks, and which operations return the most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Final

from torchprof_hooks.profiles.memory import MemorySummary
from torchprof_hooks.profiles.names import OUTSIDE_NAME, Phase
from torchprof_hooks.profiles.trace.memory_replay import (
    DeviceReplay,
    MemoryReplay,
    OutputRow,
)
from torchprof_hooks.profiles.trace.step_outputs import Output
from torchprof_hooks.reports.table import plural
from torchprof_hooks.reports.units import best_byte_format

_TITLE: Final = "Memory Profile"
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


def memory_section(
    summary: MemorySummary | None,
    replay: MemoryReplay | None,
    *,
    max_rows: int,
    min_size: int,
    width: int,
    reason: str = "",
) -> str:
    """The section as text, the operations with the largest outputs first.

    max_rows: lines of the table, at most.
    min_size: bytes below which outputs are not shown.
    reason: why there is no replay.
    """
    lines = [_TITLE, "---", "   " + _measured(summary)]
    if replay is None:
        lines.append("   No step was replayed" + (f": {reason}" if reason else ""))
        return _cut(lines, width)
    lines += _peaks(replay)
    rows = [row for row in replay.rows if row.size_bytes >= min_size][:max_rows]
    if rows:
        lines += _table(rows)
    elif replay.rows:
        least = best_byte_format(min_size)
        lines.append(f"   (the outputs of every operation are less than {least})")
    if rest := replay.rows[len(rows) :]:
        lines.append("   " + _remainder(rest))
    return _cut([*lines, *_notes(replay)], width)


def _cut(lines: Sequence[str], width: int) -> str:
    return "\n".join(line[:width].rstrip() for line in lines)


def _measured(summary: MemorySummary | None) -> str:
    label = "Peak of the allocator"
    if summary is None:
        return f"{label}: not measured"
    if not summary.source:
        return f"{label}: not measured: {summary.unavailable}"
    source = f"on {summary.source}"
    if summary.source == "cpu":
        source = "in the process" if summary.is_net else "of tensors on the CPU"
    place = _place(_called(summary.peak_path), summary.peak_phase)
    at_least = "at least " * summary.peaks_are_lower_bounds
    peak = best_byte_format(summary.peak_bytes)
    text = f"{label}: {at_least}{peak} {source}, in {place}"
    if summary.unavailable:
        text += f" (in a part of the run not measured: {summary.unavailable})"
    return text


def _called(path: Sequence[str]) -> str:
    """The name at the end of a path: of a module its whole name, of others with the
    module around it."""
    if not path:
        return OUTSIDE_NAME
    *around, name = path
    is_part = around and name.startswith(f"{around[-1]}.")
    return name if is_part or not around else f"{around[-1]}: {name}"


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
