"""The sentences of a document: how long was measured, what measuring took, how much of
the device and of its memory is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import quantiles
from typing import Final, NamedTuple

from torchprof_hooks.documents import utilisation
from torchprof_hooks.documents.build.layers import waits_for_the_host
from torchprof_hooks.documents.build.memory import (
    failure_notes,
    memory_text,
    peak_owner,
)
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import Block, Document, Facts, Value
from torchprof_hooks.documents.render.units import (
    best_count_format,
    best_time,
    counted,
)
from torchprof_hooks.documents.words import (
    NEVER_ENTERED,
    OTHER_THREADS,
    percent,
    plural,
)
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.measured_steps import MeasuredSteps
from torchprof_hooks.profiles.names import FUSED_CLASS
from torchprof_hooks.profiles.peak import Peak

#: With fewer blocks, how much longer measured steps took is not printed.
_FEWEST_BLOCKS: Final = 5


def document_of(
    view: View, blocks: Iterable[Block], numbers: Mapping[str, object] | None = None
) -> Document:
    """A document of a run, with these blocks below its title and notes."""
    kind = "program" if view.profile.program else "profile"
    return Document(kind, title_of(view), notes_of(view), list(blocks), numbers or {})


def title_of(view: View) -> str:
    """The title: what was run, and by which rank if there are several: ``rank 0 of 4,
    Net``."""
    return ", ".join(filter(None, [*_rank(view.profile), view.title]))


def notes_of(view: View) -> list[str]:
    """The notes: how long was measured, the steps with their durations, how much longer
    measured ones took than others, and whether memory ran out in between."""
    notes = [times_text(view), ", ".join(step_texts(view)), *compared_texts(view)]
    notes += failure_notes(view.profile)
    return [note for note in notes if note]


def _rank(profile: ProfileData) -> Iterator[str]:
    if len(profile.provenance) == 1 and profile.provenance[0].world_size > 1:
        (process,) = profile.provenance
        yield f"rank {process.rank} of {process.world_size}"


def times_text(view: View) -> str:
    """How long was measured, how much of that before the loop; and the exception that
    ended it."""
    profile = view.profile
    what = "measured" if view.unmeasured.wall_ns else "wall"
    text = f"{best_time(profile.wall_ns)} {what}"
    if view.start_up:
        text += f": {best_time(view.start_up.wall_ns)} start-up with "
        text += f"{view.end_of_start_up}, then {best_time(view.shown.wall_ns)}"
    if profile.measured.traced_ns:
        text += f", and {best_time(profile.measured.traced_ns)} in traced steps"
    if profile.program and profile.program.ended_by:
        text += f"; ended by {profile.program.ended_by}"
    return text


def step_texts(view: View) -> Iterator[str]:
    """The numbers of steps and evaluation calls, with their durations."""
    profile, times = view.profile, view.profile.step_times
    steps = plural(profile.steps, "step")
    if others := view.unmeasured.steps:
        steps = f"{profile.steps} of {plural(profile.steps + others, 'step')} measured"
    if profile.steps:
        steps += _step_durations(profile)
    if profile.steps or others:
        yield steps
    if times.evaluations:
        calls = plural(times.evaluations, "evaluation call")
        yield f"{calls}{_evaluation_durations(view)}"


def _step_durations(profile: ProfileData) -> str:
    times = profile.step_times
    if not times.steps:
        return f" of {best_time(profile.wall_ns / profile.steps)}"
    first, mean = best_time(times.first_mean_ns), best_time(times.mean_ns)
    if not times.later_steps:
        return f" of {first}"
    half, most = best_time(times.quantile_ns(0.5)), best_time(times.quantile_ns(0.9))
    spread = f"{mean} (median {half}, 90 % within {most})"
    return f": first {first}, then {spread}" if times.first_steps else f" of {spread}"


def _evaluation_durations(view: View) -> str:
    """The durations of evaluation calls, to go behind their number. The one with which
    a run begins does much for the first time, and is printed separately."""
    times, by_model = view.profile.step_times, ", ".join(_calls_of_models(view))
    if by_model and not view.start_up:
        return f": {by_model}"
    mean = by_model or best_time(times.evaluation_mean_ns)
    mean += " on the host" * bool(view.device)
    if not (times.first_evaluations and times.later_evaluations):
        return f" of {mean}"
    return f": first {best_time(times.first_evaluation_mean_ns)}, then {mean}"


def _calls_of_models(view: View) -> Iterator[str]:
    """``4 prefill of 33.17ms`` of each model, or region, if evaluations are calls of
    several: these may have little in common, so that no mean says much."""
    times = view.profile.step_times
    models = [node for node in view.tree.children if node.kind == "module"]
    calls = times.later_evaluations if view.start_up else times.evaluations
    is_all = not times.steps and sum(model.calls for model in models) == calls
    for model in models if is_all and len(models) > 1 else ():
        mean = best_time(model.cumulative_ns / max(model.calls, 1))
        yield f"{model.calls} {model.name} of {mean}"


def compared_texts(view: View) -> Iterator[str]:
    """How much longer measured steps took than the others, if there are others."""
    if not view.unmeasured.steps:
        return
    found = compared_blocks(view.profile.measured)
    if found is None:
        blocks = len(view.profile.measured.longer) + 1  # but for the first
        yield (
            "how much longer measured steps take than the others is known after "
            f"{_FEWEST_BLOCKS + 1} blocks of them: there were {blocks}"
        )
        return
    median, low, high = (100 * each for each in found)
    more = f"{median:.1f} % longer than" if median >= 0.05 else "no longer than"
    yield (
        f"measured steps took {more} the others (median of "
        f"{len(view.profile.measured.longer)} blocks, half of them between {low:.1f} "
        f"and {high:.1f} %)"
    )


class Compared(NamedTuple):
    """By which share measured steps took longer than others: the median of blocks, and
    the range of the middle half of them."""

    median: float
    low: float
    high: float


def compared_blocks(measured: MeasuredSteps) -> Compared | None:
    """How blocks of measured steps compare with others; None if they are too few."""
    if len(measured.longer) < _FEWEST_BLOCKS:
        return None
    low, median, high = quantiles(measured.longer, n=4, method="inclusive")
    return Compared(median, low, high)


def unmeasured_texts(view: View) -> Iterator[str]:
    """The time of steps that were not measured, if there are any."""
    if view.unmeasured.wall_ns:
        steps = plural(view.unmeasured.steps, "step")
        yield f"not measured: {best_time(view.unmeasured.wall_ns)} in {steps}"


def nothing(view: View) -> Facts:
    """Says why there are no tables. Whether other threads have called modules is not
    known: to learn that would slow down each of their calls."""
    why = OTHER_THREADS if view.profile.wall_ns else NEVER_ENTERED
    lines = ["No module was called: there is nothing to report.", why]
    if view.unmeasured.steps and not view.profile.steps:
        lines = ["No step was measured: there is nothing to report."]
    return Facts("nothing", "", lines)


def measuring(view: View) -> Iterator[str]:
    """What measuring took, and what is unusual."""
    profile = view.profile
    read, without = profile.steps_with_device_times, profile.steps_without_device_times
    if without:
        steps = f"{read} of {read + without} steps"
        yield f"device times are those of {steps}, scaled by calls"
    took = f"measuring took {overhead_text(view)}"
    if compared_blocks(profile.measured) is not None:
        took = "what measuring took is told above"
    yield took + core_of(profile)
    if profile.aborted_calls:
        yield f"{plural(profile.aborted_calls, 'call')} ended by an exception"
    if profile.undivided_passes:
        passes = plural(profile.undivided_passes, "backward pass", "backward passes")
        yield f"{passes} over nodes of several threads not divided"
    yield from profile.not_measured
    yield from _fused_texts(profile)


def _fused_texts(profile: ProfileData) -> Iterator[str]:
    """How much of compiled code nobody can divide among modules."""
    infos = profile.modules
    if all(info.class_name != FUSED_CLASS for info in infos.values()):
        return
    fused_ns = compiled_ns = 0
    for (path, _), totals in profile.cells.items():
        is_fused = infos[path[-1]].class_name == FUSED_CLASS
        fused_ns += totals.self_ns if is_fused else 0
        is_inside = is_fused or any(infos[name].compiled for name in path)
        compiled_ns += totals.self_ns if is_inside else 0
    if fused_ns:
        share = percent(fused_ns, compiled_ns)
        yield f"{share} of the time in compiled code is in kernels of several modules"


def overhead_text(view: View) -> str:
    """The share of the measured time that measuring took: ``at least 3.1 %``."""
    profile, program = view.profile, view.profile.program
    whole_ns = profile.wall_ns
    if program and program.program_ns > 0:
        whole_ns = program.program_ns - view.unmeasured.wall_ns
    share = min(profile.overhead_ns / whole_ns, 1.0) if whole_ns > 0 else 0.0
    return f"at least {percent(share)}"


def core_of(profile: ProfileData) -> str:
    """The core that has measured, in brackets."""
    if not profile.core or profile.core == "native":
        return " (native core)" if profile.core else ""
    reason = f": {profile.core_reason}" if profile.core_reason else ""
    return f" ({profile.core} core{reason})"


def measuring_block(view: View) -> Facts:
    """The last lines of a screen: what measuring took, and what shows more."""
    text = "; ".join(measuring(view))
    lines = [text[0].upper() + text[1:], f"More: {view.hints.more}"]
    return Facts("measuring", "", lines, is_faint=True)


def rates(view: View) -> Facts:
    """How much of the device is used: its operations, and its memory."""
    profile, memory = view.shown, view.profile.memory
    texts = {"Device": device_text(profile), "Utilisation": utilisation_text(profile)}
    lines = [f"{name}: {text}" for name, text in texts.items() if text]
    numbers = dict[str, Value]()
    if found := utilisation.of_profile(profile):
        numbers |= {"mfu": found.mfu, "hfu": found.hfu}
    if profile.peak:
        numbers |= {
            "peak_flops": profile.peak.flops,
            "peak_source": profile.peak.source,
        }
    if profile.items:
        numbers["items_per_second"] = utilisation.items_per_second(profile)
        speed = best_count_format(utilisation.items_per_second(profile))
        lines.append(f"Throughput: {speed} items per second")
    if memory is not None:
        if not memory.at_peak:  # else it is an answer
            lines.append(f"Memory: {memory_text(profile, memory)}")
        if memory.source:
            numbers["memory_peak_bytes"] = memory.peak_bytes
            numbers["memory_peak_owner"] = peak_owner(profile, memory)
    return Facts("rates", "", lines, numbers)


def device_text(profile: ProfileData) -> str:
    """A warning if the device mostly waited for the host, so that its times tell little
    of its own work; else ""."""
    if not waits_for_the_host(profile):
        return ""
    share = percent(profile.device_waits, profile.device_asked)
    return (
        f"{', '.join(profile.devices)} waited for the host at {share} "
        "of the begins and ends of calls: its times are mostly waiting"
    )


def utilisation_text(profile: ProfileData) -> str:
    """``MFU 41.2 %, HFU 45.0 % of 312.00 TFLOP/s (given as peak_flops)``; "" if no peak
    is known. A program that exceeds the peak shows that it was not one."""
    found = utilisation.of_profile(profile)
    if profile.peak is None:
        return ""
    if found is None:
        return "unknown, for no operations were counted"
    peak = peak_text(profile.peak)
    if found.hfu > 1:
        share = f"{percent(found.hfu)} of what was taken for the peak"
        return f"unknown, for the program computes at {share}: {peak}"
    text = f"MFU {percent(found.mfu)}, HFU {percent(found.hfu)} of {peak}"
    return text + f"; {utilisation.NOT_COUNTED}" * utilisation.lacks_backward(profile)


def peak_text(peak: Peak) -> str:
    """``312.00 TFLOP/s (given as peak_flops)``."""
    number, prefix = counted(peak.flops)
    return f"{number} {prefix}FLOP/s ({peak.source})"
