"""The document about the largest batch that fits into memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torchprof_hooks.documents.document import (
    Answer,
    Answers,
    Column,
    Document,
    Facts,
    Table,
)
from torchprof_hooks.documents.render.units import best_byte_format
from torchprof_hooks.profiles.batch import BatchFit

#: From so many times the larger measured batch on, a prediction is a rough one.
_FAR: Final = 16
#: How something grows.
_POWERS: Final = {
    2.0: "with the square of the batch",
    3.0: "with the cube of the batch",
}


def batch_document(fit: BatchFit) -> Document:
    """The largest batch; and the peaks that were measured, and are predicted."""
    limit = best_byte_format(fit.memory_bytes)
    each = best_byte_format(fit.each_bytes)
    if fit.largest:
        peak_bytes = fit.peak_bytes(fit.largest)
        is_sure = fit.largest == fit.at_most
        answer = str(fit.largest) if is_sure else f"{fit.largest} to {fit.at_most}"
        evidence = f"a peak of {best_byte_format(peak_bytes)}, {each} more for each"
    else:
        peak_bytes = fit.peak_bytes(1)
        answer = "none"
        evidence = f"a batch of 1 would have a peak of {best_byte_format(peak_bytes)}"
    numbers = {
        "largest_batch": fit.largest,
        "at_most": fit.at_most,
        "memory_bytes": fit.memory_bytes,
        "peak_bytes": peak_bytes,
        "sample_bytes": fit.each_bytes,
    }
    answers = [
        Answer(
            "largest_batch",
            f"Largest batch within {limit}",
            answer,
            evidence=evidence,
            numbers=numbers,
        )
    ]
    return Document(
        "batch",
        "batch sizes",
        blocks=[
            Answers(answers, [*_warnings(fit)]),
            _sizes(fit),
            Facts("fitted", "", _notes(fit)),
        ],
    )


def _warnings(fit: BatchFit) -> Iterator[str]:
    """What grows faster than the batch."""
    large = max(fit.measured)
    for name, power, size in fit.faster:
        how = _POWERS.get(round(power, 1), "faster than the batch")
        part = f"{best_byte_format(size)} of the peak at {large}"
        yield f"{name} grows {how}: {part}"
    if fit.largest != fit.at_most:
        why = "The peak grows faster than the batch, and no module shows it"
        if fit.faster:
            why = "Another moment of a step may become the highest one"
        yield f"{why}: so this is a range, and a larger size that is measured says more"


def _sizes(fit: BatchFit) -> Table:
    """The sizes that were measured, doubled ones until there is no room, and the
    largest."""
    sizes = {*fit.measured, fit.largest, 1}
    size = max(fit.measured)
    while (size := 2 * size) < fit.largest:
        sizes.add(size)
    shown = sorted(sizes - {0})
    peaks = [fit.measured.get(size, fit.peak_bytes(size)) for size in shown]
    return Table(
        "batches",
        "",
        "batch size",
        [str(size) for size in shown],
        [
            Column("peak of a step", "bytes", peaks, "peak_bytes"),
            Column(
                "",
                "text",
                ["measured" if size in fit.measured else "predicted" for size in shown],
                "source",
            ),
        ],
    )


def _notes(fit: BatchFit) -> list[str]:
    lines = [
        "in use by tensors: an allocator and libraries need some more; measure the "
        "size that you choose"
    ]
    if fit.largest > _FAR * max(fit.measured):
        lines.append(
            f"{fit.largest} is far from what was measured: measure larger sizes to be "
            "surer"
        )
    return lines
