"""Each rule speaks at its limits, and is silent just below each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from math import ceil
from typing import Any, Final

import pytest

from tests.build import MS, Cells, ms, profile_of, with_fields
from torchprof_hooks.documents.build.rules import RULES, Rule, find_tips
from torchprof_hooks.documents.build.slow_steps import slow_table
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.compilation import (
    CompilationSummary,
    CompiledGraph,
    GraphBreak,
)
from torchprof_hooks.profiles.memory import (
    Checkpointing,
    GrowingMemory,
    HeldMemory,
    MemoryFailure,
    MemoryStep,
    MemorySummary,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.optimizers import OptimizerFacts
from torchprof_hooks.profiles.program import Program, ProgramFacts
from torchprof_hooks.profiles.step_history import PhaseOfStep, SlowStep, StepHistory
from torchprof_hooks.profiles.step_times import Bucket, StepTimes

#: Makes a run of these numbers, which are those of the limits of a rule.
Example = Callable[..., Profile]

MB: Final = 2**20
MODULES: Final[Mapping[str, ModuleInfo | str]] = {
    "Net": "Net",
    **{f"Net.{n}": "Linear" for n in range(4)},
    "item(scalar)": ModuleInfo("item", "function", inputs=("float32@mps",)),
    "relu(8)": ModuleInfo("relu", "function", inputs=("int8@cpu",)),
}


def a_run(cells: Cells, modules: Any = None, steps: int = 10, **facts: Any) -> Profile:
    """Steps that take a second in all: the profiler has what `cells` leave."""
    rest_ms = 1000 - sum(totals.self_ns for totals in cells.values()) / MS
    every: dict[Any, Any] = {("Net", "forward"): ms(0, 10), **cells}
    every["(profiler overhead)", "profiler"] = ms(rest_ms)
    return profile_of(every, {**MODULES, **(modules or {})}, steps, **facts)


def in_row(name: str, phase: Phase) -> Example:
    """One row has this share of the time."""
    return lambda share: a_run({(name, phase): ms(1000 * share, 10)})


def of_others(share: float) -> Profile:
    waiting: Phase = "waiting"
    return a_run(
        {
            ("(waiting for gradients)", waiting): ms(500 * share, 10),
            ("(communication) broadcast", "communication"): ms(500 * share, 10),
        }
    )


def fused(share: float, **changes: Any) -> Profile:
    adam = OptimizerFacts("Adam", 1, True, False, "cuda")._replace(**changes)
    run = in_row(f"(optimizer) {adam.name}", "optimizer")(share=share)
    return replace(run, program=Program("x.py", facts=ProgramFacts((adam,))))


def reading(per_turn: float) -> Profile:
    return a_run({("item(scalar)", "outside"): ms(50, int(10 * per_turn))})


def small(share: float, per_turn: float, per_ms: float, **facts: Any) -> Profile:
    """The share is that of a loop of which the rest is the profiler's."""
    calls = ceil(10 * per_turn)
    took_ms = calls / per_ms
    run = a_run({("Net > relu(8)", "forward"): ms(took_ms, calls)}, **facts)
    rest = {("(profiler overhead)", "profiler"): ms(took_ms / share - took_ms)}
    cells = {("Net > relu(8)", "forward"): ms(took_ms, calls)}
    return profile_of({**cells, **rest}, run.modules, 10)


def backward(times: float, share: float) -> Profile:
    """A share of 5 % is more than six times the forward of 8 ms."""
    return a_run(
        {
            ("Net > Net.0", "forward"): ms(1000 * share / times, 10),
            ("Net > Net.0", "backward"): ms(1000 * share, 10),
        }
    )


def around_kernels(share: float, times: float) -> Profile:
    run = a_run(
        {
            ("Net", "forward"): ms(1000 * share, 10),
            ("Net > Net.0", "forward"): ms(1000 * share / times, 10),
        }
    )
    net = replace(run.modules["Net"], compiled=True)
    return replace(run, modules={**run.modules, "Net": net})


def departing(times: float, more: float) -> Profile:
    """One of three layers takes `more` of the time longer than the others."""
    usual_ms = 1000 * more / (times - 1)
    own = [ms(usual_ms, 10), ms(usual_ms, 10), ms(usual_ms * times, 10)]
    return a_run({(f"Net > Net.{n}", "forward"): own[n] for n in range(3)})


def slow_steps(of_more: float, phase: Phase = "garbage") -> Profile:
    """One of 20 steps is 100 ms longer than the others."""
    more = {phase: of_more, "forward": 1 - of_more}
    if of_more < 0.5:  # what most of it is, is something else
        more = {"garbage": of_more, "forward": 1 - of_more}
    phases = tuple(
        PhaseOfStep(name, round(100 * MS * part) + MS, MS)
        for name, part in more.items()
    )
    slow = SlowStep(7, 102 * MS, 2 * MS, phases)
    later = (Bucket(1, 19, 38 * MS), Bucket(2, 1, 102 * MS))
    history = StepHistory(slowest=(slow,))
    return a_run({}, steps=20, step_times=StepTimes(later=later), step_history=history)


def growing_garbage(steps: float, times: float) -> Profile:
    """Garbage is collected in slow steps, in the later half of them for longer; one
    step is slow in forward, and takes most of what all take more."""
    count, usual = int(steps), [PhaseOfStep("forward", 2 * MS, 2 * MS)]
    slowest = [SlowStep(9, 5002 * MS, 2 * MS, (PhaseOfStep("forward", 5002 * MS, 2),))]
    for n in range(count):
        took_ns = round(100 * MS * (times if n >= count / 2 else 1))
        phases = (PhaseOfStep("garbage", took_ns, 0), *usual)
        slowest.append(SlowStep(10 + n, took_ns + 2 * MS, 2 * MS, phases))
    later = (Bucket(1, 99, 198 * MS), Bucket(2, count + 1, 5002 * MS))
    history = StepHistory(slowest=tuple(slowest[::-1]))
    return a_run({}, steps=99, step_times=StepTimes(later=later), step_history=history)


def compiling(
    graphs: Mapping[str, Any] | None = None,
    times: float = 0,
    share: float = 0.05,
    **facts: Any,
) -> Profile:
    graph = CompiledGraph("forward", "net.py:7", "0/1", 0, 0)
    found = tuple(graph._replace(**(graphs or {})) for _ in range(int(times)))
    compilation = CompilationSummary(2, 10**9, found, **facts)
    cells: Cells = {("(torch.compile)", "compiling"): ms(1000 * share, 2)}
    return a_run(cells, program=Program("x.py", compilation=compilation))


def broken(times: float) -> Profile:
    breaks = [GraphBreak("forward", "net.py:9", "Call to `print`", int(times))]
    return compiling(graph_breaks=tuple(breaks) if int(times) else ())


def held(path: tuple[str, ...], kind: Any, size: float) -> HeldMemory:
    return HeldMemory(path, "forward", kind, round(size * MB))


def with_memory(**fields: Any) -> Profile:
    return a_run({}, memory=MemorySummary("cpu", 100 * MB, ("Net",), **fields))


def refused(times: float) -> Profile:
    full = (held(("Net",), "other", 1000),)
    failure = MemoryFailure(round(1000 * MB * times), ("Net",), "forward", full)
    return with_memory(failure=failure)


def ran_out(share: float, **fields: Any) -> Profile:
    full = (
        held(("Net",), "activation", 1000 * share),
        held(("Net",), "other", 1000 * (1 - share)),
    )
    failure = MemoryFailure(MB, ("Net",), "forward", full)
    return with_memory(failure=failure, **fields)


def large(share: float) -> Profile:
    at_peak = (
        held(("Net", "Net.0"), "temporary", 1e5 * share + 1e-3),
        held(("Net",), "parameter", 1e5 * (1 - share)),
    )
    return with_memory(at_peak=at_peak)


def checkpointed(share: float, saved: float) -> Profile:
    at_peak = (
        held(("(outside modules)",), "activation", 100 * share),
        held(("Net",), "parameter", 100 * (1 - share)),
    )
    lower = Checkpointing(("Net.0",), round((1 - saved) * 1000 * MB), 1)
    step = MemoryStep(1000 * MB, checkpointing=(lower,))
    memory = MemorySummary("cpu", 100 * MB, ("Net",), at_peak=at_peak, step=step)
    cells: Cells = {
        ("Net > Net.0", "forward"): ms(10, 10),
        ("Net > Net.0", "backward"): ms(0, 10),
    }
    return a_run(cells, memory=memory)


GROWING: Final = (GrowingMemory(("Net",), "forward", "activation", MB, MB, 3),)
ANOMALIES: Final = Program("x.py", facts=ProgramFacts(detects_anomalies=True))


def host(share: float, **facts: Any) -> Profile:
    run = a_run({("Net > Net.0", "forward"): ms(1000 * share, 10)}, **facts)
    return replace(run, devices=("cuda",), device_asked=40, device_waits=40)


#: Each rule, by its name.
EXAMPLES: Final[dict[str, Example]] = {
    "growing memory": lambda: with_memory(growing=GROWING),
    "one large tensor": refused,
    "memory ran out": ran_out,
    "checkpointing": checkpointed,
    "large module": large,
    "data loading": in_row("(data loading)", "data"),
    "other ranks": of_others,
    "reads from a device": reading,
    "outside modules": in_row("(outside modules)", "outside"),
    "anomaly detection": lambda: a_run({}, program=ANOMALIES),
    "recompiles": lambda times, share: compiling(
        {"recompile_reason": "size"}, times, share
    ),
    "graph breaks": broken,
    "not compiled": lambda times: compiling({"failure": "generator"}, times),
    "around kernels": around_kernels,
    "torch.compile": in_row("(torch.compile)", "compiling"),
    "garbage collection": in_row("(garbage collection)", "garbage"),
    "fused optimizers": fused,
    "optimizers": in_row("(optimizer) Adam", "optimizer"),
    "recomputing": in_row("Net > Net.0", "recompute"),
    "growing garbage": growing_garbage,
    "slow steps": slow_steps,
    "slow backward": backward,
    "layer that departs": departing,
    "small functions": small,
    "the host": host,
}

#: A rule, with the limit below which it is.
LIMITS: Final = [(rule, name) for rule in RULES for name in rule.limits]


def rules_of(profile: Profile) -> list[str]:
    return [tip.rule for tip in find_tips(view_of(profile))]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_speaks_at_its_limits(rule: Rule) -> None:
    assert rules_of(EXAMPLES[rule.name](**rule.limits)) == [rule.name]


@pytest.mark.parametrize(
    ("rule", "limit"), LIMITS, ids=[f"{rule.name}: {limit}" for rule, limit in LIMITS]
)
def test_a_rule_is_silent_just_below_a_limit(rule: Rule, limit: str) -> None:
    below = {**rule.limits, limit: 0.99 * rule.limits[limit]}
    assert rules_of(EXAMPLES[rule.name](**below)) == []


# What limits do not say

LESS_OFTEN: Final = "step less often, on larger batches."


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "mps"},
        {"is_fused": True},
        {"can_fuse": False},
        {"name": "SGD", "device": "cpu"},
        {"name": "Mine"},
    ],
    ids=str,
)
def test_optimizers_that_cannot_be_faster(changes: dict[str, Any]) -> None:
    assert "fused optimizers" not in rules_of(fused(0.5, **changes))


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"can_fuse": True}, "Adam(..., fused=True) updates all tensors together."),
        (
            {"can_foreach": True},
            "Adam(..., foreach=True) updates all tensors together.",
        ),
        ({"can_foreach": True, "is_foreach": True}, LESS_OFTEN),
        ({"can_foreach": True, "can_fuse": True, "is_fused": True}, LESS_OFTEN),
        ({}, LESS_OFTEN),
    ],
    ids=str,
)
def test_nothing_is_said_of_forms_that_an_optimizer_has_not_or_uses(
    changes: dict[str, bool], remedy: str
) -> None:
    run = fused(0.5, **{"device": "mps", "can_fuse": False, **changes})
    assert [tip.remedy for tip in find_tips(view_of(run))] == [remedy]


READS: Final[Cells] = {
    ("item(scalar)", "outside"): ms(100, 10),
    ("Net > __bool__(1)", "forward"): ms(200, 20),
    ("Net > getitem(8x4, 8)", "forward"): ms(10, 10),
    ("Net > where(8)", "forward"): ms(10, 10),
}


def reads(**inputs: tuple[str, ...]) -> Profile:
    names = {path.rpartition(" > ")[2] for path, _ in READS}
    infos = {name: ModuleInfo(name.partition("(")[0], "function") for name in names}
    for name, info in infos.items():
        infos[name] = replace(info, inputs=inputs.get(info.class_name, ()))
    return a_run(READS, infos)


def test_reads_from_a_device() -> None:
    masked = ("float32@cuda", "bool@cuda")
    on_device = {"item": ("float32@cuda",), "getitem": masked, "where": ("bool@cuda",)}
    tip, *_ = find_tips(view_of(reads(__bool__=("bool@cuda",), **on_device)))
    assert "about 5.0 times per step (__bool__ 2.0, item 1.0, getitem 1.0" in tip.claim
    assert "32.0 % of the run (320.00ms), the most in Net: __bool__(1)" in tip.claim


def test_what_does_not_wait_for_a_device() -> None:
    indexed = ("float32@cuda", "int64@cuda")
    both = ("bool@cuda", "float32@cuda")
    found = reads(item=("float32@cpu",), getitem=indexed, where=both)
    assert "reads from a device" not in rules_of(found)
    assert "reads from a device" not in rules_of(reads())  # nobody knows


def test_functions_that_a_device_hides_are_not_small() -> None:
    assert rules_of(small(0.5, 1000, 200)) == ["small functions"]
    for device_ms in (0, 1000):  # not measured, and busy
        cells: Cells = {("Net > relu(8)", "forward"): ms(50, 10_000, device_ms)}
        relu = ModuleInfo("relu", "function", inputs=("int8@cuda",))
        assert rules_of(a_run(cells, {"relu(8)": relu})) == []


@pytest.mark.parametrize("make", [small, host])
def test_what_is_compiled_is_not_told_to_be(make: Example) -> None:
    [rule] = (r for r in RULES if EXAMPLES[r.name] is make)
    plain = make(**rule.limits)
    infos = {**plain.modules, "Net": ModuleInfo("Net", compiled=True)}
    for profile, is_told in ((plain, True), (replace(plain, modules=infos), False)):
        [tip] = find_tips(view_of(profile))
        assert ("torch.compile" in tip.remedy) is is_told


@pytest.mark.parametrize(
    ("phase", "helps"), [("data", "workers"), ("outside", None), ("garbage", "gc.")]
)
def test_slow_steps_have_advice_where_their_phase_has(
    phase: Phase, helps: str | None
) -> None:
    tips = find_tips(view_of(slow_steps(0.9, phase)))
    assert [helps in tip.remedy for tip in tips if helps] == [True] * bool(helps)


def test_advice_is_given_once() -> None:
    slow, data = slow_steps(0.9, "data"), in_row("(data loading)", "data")(share=0.3)
    assert rules_of(slow) == ["slow steps"]
    times = StepTimes(later=slow.step_times.later)
    both = with_fields(data, step_times=times)
    both = replace(both, step_history=slow.step_history)
    assert [*slow_table(view_of(both))]
    assert rules_of(both) == ["data loading"]


def test_what_grows_comes_before_what_runs_out() -> None:
    assert rules_of(ran_out(0.9, growing=GROWING)) == ["growing memory"]


def test_memory_that_has_parameters_or_is_no_module_is_no_large_module() -> None:
    for path, kind in ((("Net", "Net.0"), "parameter"), (("loss(8)",), "activation")):
        found = large(0.9)
        assert found.memory is not None
        at_peak = (*found.memory.at_peak, held(path, kind, 1e6))
        memory = replace(found.memory, at_peak=at_peak)
        assert rules_of(replace(found, memory=memory)) == []


def test_a_run_about_which_there_is_nothing_to_say() -> None:
    assert rules_of(a_run({})) == rules_of(profile_of()) == []


def test_each_rule_is_on_the_page_of_advice() -> None:
    """``python -m docs.advice`` writes it."""
    advice: Any = import_module("docs.advice")
    assert advice.PAGE.read_text(encoding="utf-8") == advice.page()
    assert len({rule.name for rule in RULES}) == len(RULES)
