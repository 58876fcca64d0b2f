"""What conditions of rules find in a profile (see `rules`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from textwrap import shorten
from typing import Final

from torchprof_hooks.documents.build.findings import (
    BottleneckKind,
    Unusual,
    functions_outside,
    is_outside,
    times_text,
)
from torchprof_hooks.documents.build.memory import (
    LARGE_REQUEST,
    failure_of,
    grown_kinds,
    module_of,
    place_of,
)
from torchprof_hooks.documents.build.memory_step import savings
from torchprof_hooks.documents.build.slow_steps import phases_of_slow, printed_steps
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.render.units import (
    best_byte_format,
    best_count_format,
    best_time,
)
from torchprof_hooks.documents.words import KIND_TITLES, percent, plural
from torchprof_hooks.profiles.compilation import GraphBreak, Reasons
from torchprof_hooks.profiles.kinds import LayerKind
from torchprof_hooks.profiles.memory import MemoryKind, bytes_by_kind
from torchprof_hooks.profiles.names import BACKWARD_PHASES, Phase, optimizer_name
from torchprof_hooks.profiles.phases import PHASE_TITLES
from torchprof_hooks.profiles.rows import Row

#: How many calls of a module are named.
_CALLS_NAMED: Final = 2
_LONGEST_REASON: Final = 160
#: Of what checkpointing saves, more comes first if it is so much of the best per time.
_NEARLY: Final = 0.5

#: The ends of `Row.inputs` that are on no device but the CPU ("?": not known).
_ON_CPU: Final = ("@cpu", "@meta", "?", "mixed")
#: Functions that return Python values, results on the CPU, or results whose size
#: depends on elements: they wait for the device.
_READS: Final = frozenset(
    (
        *("__bool__", "__complex__", "__float__", "__index__", "__int__", "allclose"),
        *("argwhere", "contains", "cpu", "equal", "is_nonzero", "item"),
        *("masked_select", "nonzero", "tolist", "unique", "unique_consecutive"),
    )
)
#: Optimizers -> devices on which their fused form is known to be faster. Not SGD on the
#: CPU: there, it waits for memory only, which fusing does not change.
_FASTER_FUSED: Final[Mapping[str, Sequence[str]]] = {
    "Adagrad": ("cpu",),
    "Adam": ("cpu", "cuda"),
    "AdamW": ("cpu", "cuda"),
    "SGD": ("cuda",),
}


@dataclass(frozen=True)
class Found:
    """What the condition of a rule found.

    numbers: what the rule's limits are compared with.
    texts: what its claim and its remedy name.
    case: what its remedy depends on (see `Rule.remedies`).
    layers: the layers that it is about, if it is about layers.
    """

    numbers: Mapping[str, float]
    texts: Mapping[str, str] = field(default_factory=dict)
    case: str = ""
    layers: LayerKind | None = None


# Time that is in no module


def in_phases(view: View, phases: Sequence[Phase]) -> Iterator[Found]:
    """Phases that take time."""
    share = view.of_phases(*phases)
    yield Found({"share": share.fraction}, {"share": str(share)})


def outside_modules(view: View) -> Iterator[Found]:
    """A loop that does much itself: not only functions, such as losses, which have
    their own rows."""
    rows = view.shown.rows() if view.is_loop else ()
    share = view.share(sum(row.self_ns for row in rows if is_outside(row)))
    of_functions = view.share(functions_outside(view.shown, "").total())
    own = {"share": share.fraction - of_functions.fraction}
    yield Found(own, {"share": str(share)})


def leads(view: View, kind: BottleneckKind) -> Iterator[Found]:
    """What is no module, and takes most."""
    found = view.bottleneck
    if found is not None and found.kind == kind:
        share = {"share": found.own_ns / view.whole_ns}
        texts = {"share": str(view.share(found.own_ns))}
        texts["name"] = next(iter(found.parts_ns), "")
        case = "compiled" if view.is_compiled else ""
        if kind == "optimizer":
            case = _unused_form(view, texts["name"])
        yield Found(share, texts, case)


def _unused_form(view: View, name: str) -> str:
    """The better form that optimizers of this class have, and do not use; "" if there
    is none."""
    facts = [each for each in view.program.facts.optimizers if each.name == name]
    if not facts:
        return "not known"
    if any(each.can_fuse and not each.is_fused for each in facts):
        return "fused= is off"
    used = (each.is_fused or each.is_foreach for each in facts if each.can_foreach)
    return "" if all(used) else "foreach= is off"


def unfused_optimizers(view: View) -> Iterator[Found]:
    """Optimizers that have a faster form. Only the time of all of one class is known,
    so they are added up by class."""
    every = view.program.facts.optimizers
    names = dict.fromkeys(
        each.name
        for each in every
        if each.device in _FASTER_FUSED.get(each.name, ())
        and each.can_fuse
        and not each.is_fused
    )
    rows = view.shown.rows() if names else ()
    times = {row.name: row.self_ns for row in rows if row.kind == "optimizer"}
    for name in names:
        share = view.share(times.get(optimizer_name(name), 0))
        alike = [each for each in every if each.name == name]
        optimizers = sum(each.optimizers for each in alike)
        tensors = plural(sum(each.parameters for each in alike), "tensor")
        among = f" of the {optimizers} optimizers of this class" * (optimizers > 1)
        texts = {"name": name, "share": str(share), "tensors": tensors + among}
        yield Found({"share": share.fraction}, texts)


def recomputing(view: View) -> Iterator[Found]:
    """Activation checkpoints that cost much."""
    share = view.of_phases("recompute")
    times = {
        row.name: row.phases["recompute"].cumulative_ns
        for row in (view.shown.rows() if share.part_ns else ())
        if row.kind == "module" and row.phases["recompute"].calls
    }
    most = max(times, key=times.__getitem__, default="")
    where = f", the most in {most} ({best_time(times[most])})" if most else ""
    yield Found({"share": share.fraction}, {"share": f"{share}{where}"})


def slow_steps(view: View) -> Iterator[Found]:
    """The phase in which slow steps take most of what they take more than usual."""
    more = phases_of_slow(view)
    for phase, most_ns in more.most_common(1):
        share = f"{percent(most_ns, more.total())} ({best_time(most_ns)})"
        texts = {"phase": PHASE_TITLES[phase], "share": share}
        yield Found({"of_more": most_ns / more.total()}, texts, phase)


def growing_garbage(view: View) -> Iterator[Found]:
    """Collections of garbage that take longer and longer."""
    found = sorted(
        (step.number, each.self_ns, step.objects)
        for step in printed_steps(view)
        for each in step.phases
        if each.phase == "garbage" and 2 * each.more_ns >= step.more_ns
    )
    if len(found) > 1:
        half, times = len(found) // 2, [ns for _, ns, _ in found]
        growth = sum(times[-half:]) / max(sum(times[:half]), 1)
        texts = [
            f"{best_time(ns)} in step {number}"
            + f" (about {best_count_format(objects)} objects)" * bool(objects)
            for number, ns, objects in found
        ]
        named = {"first": texts[0], "last": texts[-1]}
        yield Found({"times": growth, "steps": len(found)}, named)


def anomaly_detection(view: View) -> Iterator[Found]:
    """Autograd looked for anomalies."""
    if view.program.facts.detects_anomalies:
        yield Found({})


# Layers and functions


def departing_layers(view: View) -> Iterator[Found]:
    """Layers that take longer than others of their kind."""
    for one in view.unusual:
        if one.departure is not None:
            more = one.departure.more_ns / view.whole_ns
            siblings, calls = str(one.departure.siblings), view.calls_apart(one)
            case = "other calls" if calls else "same calls"
            if not view.shown.has_functions:
                case = "functions not measured"
            yield _about(
                view, one, {"more": more}, case, siblings=siblings, calls=calls or ""
            )


def slow_backward(view: View) -> Iterator[Found]:
    """Layers whose backward takes many times their forward."""
    for one in view.unusual:
        if one.departure is None:
            share = one.own_ns / view.whole_ns
            function, case = _most_in_backward(view, one)
            yield _about(view, one, {"share": share}, case, function=function)


def _about(
    view: View, one: Unusual, numbers: Mapping[str, float], case: str, **texts: str
) -> Found:
    share = str(view.share(one.own_ns))
    texts |= {"name": one.name, "share": share, "times": times_text(one.times)}
    return Found({"times": one.times, **numbers}, texts, case, one.kind)


def _most_in_backward(view: View, one: Unusual) -> tuple[str, str]:
    """The function that has most of the backward of these layers, and what it is: of
    torch's own, that of a convolution or of a loss may well take so long."""
    if not view.shown.has_functions:
        return "", "functions not measured"
    times, names = Counter[tuple[str, str]](), {row.name for row in one.rows}
    for row in view.calls:
        if row.module in names:
            function = (row.class_name, row.implementation)
            times[function] += _phases_ns(row, BACKWARD_PHASES)
    [((name, implementation), most_ns)] = times.most_common(1) or [(("", ""), 0)]
    if 2 * most_ns < one.own_ns:
        return "", "no function"
    return name, implementation if implementation == "custom" else name


def _phases_ns(row: Row, phases: Collection[Phase]) -> int:
    return sum(t.self_ns for phase, t in row.phases.items() if phase in phases)


def small_functions(view: View) -> Iterator[Found]:
    """Functions so short that calling them is a large part of the work."""
    totals = [each for row in view.calls for each in row.phases.values()]
    calls = sum(each.calls for each in totals)
    share = view.share(sum(each.self_ns for each in totals))
    on_device = any(map(uses_device, view.calls))
    longest_ns = max(share.part_ns, _device_ns(view) if on_device else 0)
    per_turn = view.per_turn(sum(row.calls for row in view.calls))
    if not calls or not longest_ns:
        return
    texts = {
        "functions": f"{per_turn:.0f} functions per {view.turns.noun}",
        "each": f"{share.part_ns / calls / 1e3:.1f}us",
        "share": str(share),
    }
    numbers = {
        "share": share.fraction,
        "per_turn": per_turn,
        "per_ms": calls / longest_ns * 1e6,
    }
    yield Found(numbers, texts, "compiled" if view.is_compiled else "")


def _device_ns(view: View) -> float:
    """The time of the device, inf if that was not measured: a device that is busy all
    the time hides the cost of calls."""
    cells = view.shown.cells.values()
    return sum(totals.device_self_ns for totals in cells) or inf


def reads_from_device(view: View) -> Iterator[Found]:
    """Functions that wait for a device."""
    rows = [row for row in view.calls if uses_device(row) and _waits(row)]
    times = Counter[str]()
    for row in rows:
        times[row.class_name] += row.calls
    per_turn = view.per_turn(times.total())
    each = ", ".join(
        f"{name} {view.per_turn(calls):.1f}" for name, calls in times.most_common()
    )
    own = {row.name: row.self_ns - _phases_ns(row, BACKWARD_PHASES) for row in rows}
    texts = {
        "times": f"{per_turn:.1f} times per {view.turns.noun} ({each})",
        "share": str(view.share(sum(own.values()))),
        "name": max(own, key=own.__getitem__, default=""),
    }
    yield Found({"per_turn": per_turn}, texts)


def uses_device(row: Row) -> bool:
    """Whether an input of a function was on a device that is not the CPU."""
    return any(not kind.endswith(_ON_CPU) for kind in row.inputs)


def _waits(row: Row) -> bool:
    if row.class_name == "getitem":  # by a mask
        return any(kind.startswith(("bool@", "uint8@")) for kind in row.inputs[1:])
    if row.class_name == "where":  # only a condition: its nonzero elements
        return len(row.inputs) == 1
    return row.class_name in _READS


# torch.compile


def graph_breaks(view: View) -> Iterator[Found]:
    """Code that torch.compile left to Python."""
    yield from _compiled(view.program.compilation.graph_breaks)


def around_kernels(view: View) -> Iterator[Found]:
    """Compiled modules that are in no other one, and in which kernels were told
    apart."""
    own: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    infos = view.shown.modules
    for (path, _), totals in view.shown.cells.items() if view.is_compiled else ():
        around = next((name for name in path if infos[name].compiled), "")
        (own if path[-1] == around else inside)[around] += totals.self_ns
    for name in own.keys() & inside.keys():
        share, rest = view.share(own[name]), view.share(inside[name])
        texts = {"name": name, "share": str(share), "inside": str(rest)}
        times = own[name] / max(inside[name], 1)
        yield Found({"share": share.fraction, "times": times}, texts)


def recompiles(view: View) -> Iterator[Found]:
    """Code that was compiled more than once: for training and for evaluation, say,
    which takes no time in the loop."""
    share = view.of_phases("compiling").fraction
    for found in _compiled(view.program.compilation.recompiles):
        yield replace(found, numbers={**found.numbers, "share": share})


def compile_failures(view: View) -> Iterator[Found]:
    """Code that torch.compile failed to compile."""
    yield from _compiled(view.program.compilation.failures)


def _compiled(found: Sequence[Reasons | GraphBreak]) -> Iterator[Found]:
    """How often it happened, where most often, and why."""
    if not found:
        return
    most = max(found, key=lambda each: each.times)
    count = sum(each.times for each in found)
    place = f"({most.place})" if most.function and most.place else most.place
    where = " ".join(filter(None, (most.function, place))) or "an unknown place"
    reason = shorten(most.reasons[0], _LONGEST_REASON, placeholder="...")
    texts = {"times": plural(count, "time"), "where": where, "reason": reason}
    yield Found({"times": count}, texts)


# Memory


def growing_memory(view: View) -> Iterator[Found]:
    """What grows from step to step."""
    added = grown_kinds(view.profile)
    for kind, _ in added.most_common(1):
        yield Found({}, {"kind": KIND_TITLES[kind]}, kind)


def refused_tensor(view: View) -> Iterator[Found]:
    """Memory ran out for one tensor, which was so large."""
    profile = view.profile
    failure = failure_of(profile)
    if failure is None:
        return
    kept = bytes_by_kind(failure.held).get("activation", 0)
    texts = {
        "asked": best_byte_format(failure.requested_bytes),
        "where": place_of(profile, failure.path, failure.phase),
        "times": times_text(failure.times),
        "kept": best_byte_format(kept),
    }
    yield Found({"times": failure.times}, texts)


def kept_when_it_ran_out(view: View) -> Iterator[Found]:
    """Memory ran out, most of which is what forward keeps: if that is not for one large
    tensor, nothing grows, and what checkpointing would save is not known."""
    memory, failure = view.profile.memory, failure_of(view.profile)
    if memory is None or failure is None or memory.growing or memory.step:
        return
    if failure.times >= LARGE_REQUEST:
        return
    kept = bytes_by_kind(failure.held).get("activation", 0)
    share = kept / max(failure.held_bytes, 1)
    yield Found({"share": share}, {"share": percent(share)})


def checkpointing(view: View) -> Iterator[Found]:
    """What forward keeps, and could be computed again."""
    memory, profile = view.profile.memory, view.shown
    found = savings(profile, memory.step) if memory and memory.step else []
    worth = [one for one in found if one.saved_bytes > 0 and one.extra_ns > 0]
    if memory is None or memory.step is None or not worth:
        return
    kept = memory.bytes_by_kind().get("activation", 0) / max(memory.peak_bytes, 1)
    best_rate = max(one.saved_bytes / one.extra_ns for one in worth)
    best = next(w for w in worth if w.saved_bytes / w.extra_ns >= best_rate * _NEARLY)
    saved = best.saved_bytes / memory.step.peak_bytes
    longer = f", for {percent(best.extra_share)} more time" * bool(best.extra_share)
    texts = {
        "share": percent(kept),
        "name": best.label,
        "peak": best_byte_format(best.peak_bytes),
        "saved": percent(saved),
        "longer": longer,
    }
    yield Found({"share": kept, "saved": saved}, texts)


def large_module(view: View) -> Iterator[Found]:
    """A module without parameters whose calls have much of the peak."""
    profile, memory = view.profile, view.profile.memory
    if memory is None:
        return
    sizes, functions = Counter[str](), defaultdict[str, Counter[str]](Counter)
    has_parameters = set[str]()
    of_calls: Sequence[MemoryKind] = ("activation", "temporary")
    for held in memory.at_peak:
        name = module_of(profile, held)
        if held.kind == "parameter":
            has_parameters.add(name)
        elif held.kind in of_calls and name in profile.modules:
            sizes[name] += held.bytes
            functions[name][held.owner] += held.bytes
    for name, size in sizes.most_common(1):
        if profile.modules[name].kind != "module" or name in has_parameters:
            return
        calls = ", ".join(
            f"{call} {best_byte_format(n)}"
            for call, n in functions[name].most_common(_CALLS_NAMED)
            if call != name
        )
        share = size / sum(held.bytes for held in memory.at_peak)
        texts = {"name": name, "share": percent(share), "calls": f" ({calls})"}
        texts["calls"] *= bool(calls)
        yield Found({"share": share}, texts)
