"""Advice: one table of rules. Each has its condition, its limits, what it claims and
what helps; `docs/advice.md` is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from torchprof_hooks.documents.build import evidence as what
from torchprof_hooks.documents.build.evidence import Found
from torchprof_hooks.documents.build.findings import (
    LEADS,
    LEAST_BACKWARD,
    LONG_BACKWARD,
    BottleneckKind,
)
from torchprof_hooks.documents.build.memory import LARGE_REQUEST, failure_of
from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import Tip
from torchprof_hooks.profiles.kinds import kind_of


@dataclass(frozen=True)
class Rule:
    """A piece of advice.

    name: its name, in `docs/advice.md` and for programs.
    when: when it holds, in words, with its limits in them.
    condition: finds what it may be about.
    limits: the least of each number of what is found, by name.
    claim: what is the case, with texts of what is found.
    remedy: what helps, likewise; "" if that depends on the case.
    remedies: what helps in each case (`Found.case`), where that is not `remedy`; in a
        case that is in neither, there is no tip.
    on: the bottlenecks on which it is the advice, if it holds.
    is_general: whether it is given only if no other rule helps with the bottleneck.
    on_failure: whether it is for runs in which memory ran out, too: time is not what
        those lack.
    """

    name: str
    when: str
    condition: Callable[[View], Iterable[Found]]
    limits: Mapping[str, float]
    claim: str
    remedy: str = ""
    remedies: Mapping[str, str] = field(default_factory=dict)
    on: Sequence[BottleneckKind] = ()
    is_general: bool = False
    on_failure: bool = False

    def tips(self, view: View) -> Sequence[tuple[Tip, Found]]:
        """The tips of what is found, as far as it is not below the limits."""
        if self.name not in view.tips:
            view.tips[self.name] = [*self._tips(view)]
        return view.tips[self.name]

    def _tips(self, view: View) -> Iterator[tuple[Tip, Found]]:
        for found in self.condition(view):
            if all(found.numbers[name] >= least for name, least in self.limits.items()):
                remedy = self.remedies.get(found.case, self.remedy)
                if remedy or not self.remedies:
                    claim = self.claim.format_map(found.texts)
                    yield Tip(claim, remedy.format_map(found.texts), self.name), found


# What several rules say

_WORKERS: Final = (
    "give the DataLoader more workers (num_workers) if CPUs are idle, and more batches "
    "in advance (prefetch_factor); keep workers from epoch to epoch "
    "(persistent_workers=True), or do less per sample."
)
_RANKS: Final = "python -m torchprof_hooks ranks FOLDER tells for which."
_DYNAMIC: Final = (
    "TORCH_LOGS=recompiles says why. Sizes that change can be compiled as such "
    "(torch.compile(..., dynamic=True)); numbers can be given as tensors."
)
_GARBAGE: Final = (
    "gc.freeze() after the model is made leaves fewer objects to search; gc.disable(), "
    "with gc.collect() every so many steps, searches less often."
)
_KEPT: Final = "is a loss or an output kept? Keep .item() or .detach()."


def _lead(
    kind: BottleneckKind,
    claim: str,
    remedy: str,
    remedies: Mapping[str, str] | None = None,
) -> Rule:
    """What helps with a bottleneck, where no rule says more."""
    name, found = LEADS[kind].title, partial(what.leads, kind=kind)
    when = f"{name}: {{share:.0%}} of the time or more, and the bottleneck"
    least = {"share": LEADS[kind].least}
    return Rule(name, when, found, least, claim, remedy, remedies or {}, (kind,), True)


#: In the order in which tips are shown.
RULES: Final[Sequence[Rule]] = (
    Rule(
        "growing memory",
        "memory grows from step to step",
        what.growing_memory,
        {},
        "What grows with each step is mostly {kind}",
        remedies={
            "activation": _KEPT,
            "temporary": _KEPT,
            "gradient": "are gradients kept, or graphs of create_graph=True?",
            "optimizer state": "does the optimizer keep something of each step?",
            "parameter": "does a module get new parameters in each step?",
            "buffer": "does a module get larger buffers in each step?",
            "other": "are batches or copies kept?",
        },
        on_failure=True,
    ),
    Rule(
        "one large tensor",
        "memory ran out for a tensor of {times:g} times all that was in use, or more",
        what.refused_tensor,
        {"times": LARGE_REQUEST},
        "One tensor of {asked}, for {where}, is {times} all that was in use",
        "compute it in parts, or by a function that does not make it whole: "
        "checkpointing would free at most {kept} of activations.",
        on_failure=True,
    ),
    Rule(
        "memory ran out",
        "memory ran out, and activations were {share:.0%} of it, or more; nothing "
        "grows, and no step has ended",
        what.kept_when_it_ran_out,
        {"share": 0.3},
        "Activations were {share} of the memory when it ran out",
        "measure a smaller batch: its report tells what checkpointing would save.",
        on_failure=True,
    ),
    Rule(
        "checkpointing",
        "activations are {share:.0%} of the memory at the peak, or more, and "
        "checkpointing some layers would lower the peak of a step by {saved:.0%}",
        what.checkpointing,
        {"share": 0.3, "saved": 0.2},
        "Activations are {share} of the memory at the peak",
        "checkpointing {name} (torch.utils.checkpoint) would lower the peak of a step "
        "to {peak}, by {saved}{longer}.",
        on_failure=True,
    ),
    Rule(
        "large module",
        "calls of a module without parameters have {share:.0%} of the memory at the "
        "peak, or more",
        what.large_module,
        {"share": 1 / 3},
        "{name} has {share} of the memory at the peak{calls}",
        "compute it in parts, or by functions that keep less of it.",
    ),
    Rule(
        "data loading",
        "the program waits for data for {share:.0%} of the time, or more",
        partial(what.in_phases, phases=("data",)),
        {"share": LEADS["data"].least},
        "Waiting for data takes {share}",
        _WORKERS,
        on=("data",),
    ),
    Rule(
        "other ranks",
        "waiting for gradients and communication take {share:.0%} of the time, or more",
        partial(what.in_phases, phases=("waiting", "communication")),
        {"share": LEADS["waiting"].least},
        "Waiting for other ranks takes {share}",
        _RANKS,
        on=("waiting",),
    ),
    Rule(
        "reads from a device",
        "elements are read from a device {per_turn:g} times per step, or more",
        what.reads_from_device,
        {"per_turn": 0.5},
        "Elements are read from a device about {times}, for about {share}, the most in "
        "{name}",
        "each time, the program waits until the device has done all before it. Keep "
        "results on the device, and read them every so many steps.",
        on=("host", "outside"),
    ),
    Rule(
        "outside modules",
        "the program itself takes {share:.0%} of the time, or more, beside functions "
        "that were measured",
        what.outside_modules,
        {"share": 0.1},
        "The program takes {share} outside modules and optimizers",
        'with torchprof_hooks.region("name") around parts of the loop, reports tell '
        "which of them it is.",
        on=("outside",),
    ),
    Rule(
        "anomaly detection",
        "autograd's anomaly detection is on",
        what.anomaly_detection,
        {},
        "Autograd's anomaly detection was on",
        "it notes a traceback for every function and searches every gradient for NaN. "
        "Switch it off (torch.autograd.set_detect_anomaly) when you have found what "
        "you look for.",
    ),
    Rule(
        "recompiles",
        "torch.compile compiles code again, and compiling takes {share:.0%} of the "
        "time, or more",
        what.recompiles,
        {"times": 1, "share": 0.01},
        "torch.compile compiled code again {times}, most often {where} ({reason})",
        _DYNAMIC,
        on=("compiling",),
    ),
    Rule(
        "graph breaks",
        "torch.compile breaks graphs",
        what.graph_breaks,
        {"times": 1},
        "torch.compile broke graphs {times}, most at {where} ({reason})",
        "code around a break is compiled apart and left to Python in between. "
        "fullgraph=True makes an error of it.",
        on=("compiling",),
    ),
    Rule(
        "not compiled",
        "torch.compile gives up",
        what.compile_failures,
        {"times": 1},
        "torch.compile gave up {times}, most often {where} ({reason})",
        "this code ran as it is written.",
        on=("compiling",),
    ),
    Rule(
        "around kernels",
        "compiled code that is divided among modules takes {share:.0%} of the time "
        "itself, or more, and {times:g} times what is inside of it, or more",
        what.around_kernels,
        {"share": 0.1, "times": 1},
        "{name} [compiled] takes {share} itself, and {inside} in the modules inside",
        "it checks guards, allocates, and calls kernels one by one: larger batches, "
        'larger regions, or mode="reduce-overhead" on a GPU have more done for that. '
        "Kernels of no module, such as those of a loss, count, too.",
    ),
    _lead("compiling", "Compiling (torch.compile) takes {share}", _DYNAMIC),
    _lead("garbage", "Python's garbage collection takes {share}", _GARBAGE),
    Rule(
        "fused optimizers",
        "steps of an optimizer that has a faster form take {share:.0%} of the time, or "
        "more",
        what.unfused_optimizers,
        {"share": 0.05},
        "{name} takes {share} for {tensors}",
        "{name}(..., fused=True) does the same faster.",
        on=("optimizer",),
    ),
    _lead(
        "optimizer",
        "Steps of optimizers take {share}, the most in {name}",
        "step less often, on larger batches.",
        {
            "fused= is off": "{name}(..., fused=True) updates all tensors together.",
            "foreach= is off": "{name}(..., foreach=True) updates all tensors "
            "together.",
            "not known": "fused=True or foreach=True, if its class has them, updates "
            "all tensors together; else step less often, on larger batches.",
        },
    ),
    Rule(
        "recomputing",
        "activation checkpoints compute again for {share:.0%} of the time, or more",
        what.recomputing,
        {"share": 0.15},
        "Recomputing (activation checkpointing) takes {share}",
        "if memory allows, checkpoint less.",
    ),
    Rule(
        "growing garbage",
        "in {steps:g} slow steps or more, most is garbage collection, and in the later "
        "half of them it takes {times:g} times as long as in the earlier, or more",
        what.growing_garbage,
        {"steps": 6, "times": 1.25},
        "Collections of garbage take longer and longer: {first}, {last}",
        "each searches all of Python's objects: most likely, there are more and more. "
        "Are lists, caches or graphs kept from step to step?",
    ),
    Rule(
        "slow steps",
        "{of_more:.0%} or more of what slow steps take longer than usual is of one "
        "kind, and no other rule says what helps",
        what.slow_steps,
        {"of_more": 0.5},
        "What slow steps took more than usual is mostly {phase}: {share}",
        remedies={"garbage": _GARBAGE, "data": _WORKERS, "compiling": _DYNAMIC},
    ),
    Rule(
        "slow backward",
        "backward of layers takes {times:g} times their forward or more (about 2 is "
        "usual), and {share:.0%} of the time; if most of it is in one of torch's own "
        "functions, in a look-up",
        what.slow_backward,
        {"times": LONG_BACKWARD, "share": LEAST_BACKWARD},
        "{name} takes {share} in backward, {times} its forward (about 2x is usual)",
        remedies={
            "functions not measured": "profile(functions=True) tells in which "
            "function.",
            "custom": "look at the backward of the torch.autograd.Function "
            "{function}, which has most of it.",
            "embedding": "most of it is in {function}, whose gradient is as large as "
            "its table: with sparse=True (SGD, Adagrad, SparseAdam), it is not.",
            "no function": "look at its functions, of which none has half of it.",
        },
    ),
    Rule(
        "layer that departs",
        "a layer takes {times:g} times the median of the others of its kind, and "
        "{more:.0%} of the time longer than these, whose calls are alike",
        what.departing_layers,
        {"times": 3, "more": 0.1},
        "{name} takes {share}, {times} the median of the {siblings} others",
        remedies={
            "functions not measured": "profile(functions=True) tells whether its calls "
            "have other shapes or types.",
            "other calls": "unlike them, it calls {calls}.",
            "same calls": "it calls the same functions with the same shapes and types: "
            "look at the memory layout of its inputs, hooks on it, its own code.",
        },
    ),
    Rule(
        "small functions",
        "a step calls {per_turn:g} functions, or more, of which {per_ms:g} take a "
        "millisecond or less, and all {share:.0%} of the time, or more",
        what.small_functions,
        {"share": 0.1, "per_turn": 200, "per_ms": 100},
        "About {functions} and their backward take {each} per call, {share}, so short "
        "that calling them is a large part of it",
        'larger batches take little longer; torch.compile (mode="reduce-overhead" on a '
        "GPU) calls fewer functions.",
        {"compiled": "larger batches take little longer."},
        on=("host",),
    ),
    _lead(
        "host",
        "The device mostly waits for the host, which is in modules for {share}, the "
        "most in {name}",
        'larger batches, or torch.compile (mode="reduce-overhead"), launch more at '
        "once. Look for Python code in {name} that can be left out of the loop.",
        {
            "compiled": "larger batches launch more at once. Look for Python code in "
            "{name} that can be left out of the loop."
        },
    ),
)


def find_tips(view: View) -> list[Tip]:
    """The tips whose conditions the numbers meet: that on the bottleneck first, then in
    the order of `RULES`. What helps is said once.

    Shares are shares of what the view shows, as in the tables beside them. Times by
    function are called "about", as they are estimates where few steps were measured.
    """
    is_failed = failure_of(view.profile) is not None
    first = None if is_failed else tip_on_bottleneck(view)
    rules = [
        rule
        for rule in RULES
        if not rule.is_general and (rule.on_failure or not is_failed)
    ]
    found = {} if first is None else {first.remedy: first}
    for rule in rules:
        for tip, _ in rule.tips(view):
            found.setdefault(tip.remedy, tip)
    return [*found.values()]


def tip_on_bottleneck(view: View) -> Tip | None:
    """What to do about the bottleneck; None if there is none, or if it is layers about
    which nothing is unusual."""
    bottleneck, hot = view.bottleneck, view.hottest
    if bottleneck is None:
        return None
    if bottleneck.kind != "module":
        rules = (rule for rule in RULES if bottleneck.kind in rule.on)
        return next((tip for rule in rules for tip, _ in rule.tips(view)), None)
    layers = {kind_of(row, view.departing) for row in hot.rows} if hot else set()
    found = (each for rule in RULES for each in rule.tips(view))
    return next((tip for tip, about in found if about.layers in layers), None)
