from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.helpers import NOT_MODULES, hand_built, own
from tests.profile_of import profile_of
from torchprof_hooks.documents.build.tips import find_tips
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.compilation import (
    CompilationSummary,
    CompiledGraph,
    GraphBreak,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.program import (
    MeasuredSteps,
    OptimizerFacts,
    Program,
    ProgramFacts,
)
from torchprof_hooks.profiles.totals import Totals

MS = 10**6

Cells = Mapping[tuple[str, Phase], Totals]


def call(name: str, *inputs: str, autocast: str = "") -> dict[str, ModuleInfo]:
    """What is known of a function call with inputs of these types."""
    function = name.partition("(")[0]
    return {name: ModuleInfo(function, "function", inputs=inputs, autocast=autocast)}


def profile(
    cells: Cells,
    functions: Mapping[str, ModuleInfo] = {},
    modules: Mapping[str, str] = {},
    **facts: Any,
) -> Profile:
    """Ten steps that take a second in all: what `cells` leave is in Net itself."""
    rest_ns = 1000 * MS - sum(totals.self_ns for totals in cells.values())
    known: dict[str, ModuleInfo | str] = {"Net": "Net", **modules}
    known |= {**NOT_MODULES, **functions}
    known["(data loading)"] = ModuleInfo(kind="data")
    known["(waiting for gradients)"] = ModuleInfo(kind="waiting")
    known["(communication) broadcast"] = ModuleInfo(kind="communication")
    for name in ("AdamW", "Adam", "SGD"):
        known[f"(optimizer) {name}"] = ModuleInfo(kind="optimizer")
    found = hand_built({("Net", "forward"): own(rest_ns, 10), **cells}, known, **facts)
    infos = {name: shaped(name, info) for name, info in found.modules.items()}
    return replace(found, modules=infos)


def shaped(name: str, info: ModuleInfo) -> ModuleInfo:
    """With the shapes that a name like ``bmm(3 * 8x4x?, scalar)`` tells."""
    inside = name.partition("(")[2].removesuffix(")")
    if info.kind != "function" or not re.fullmatch(r"[\dx?* ,scalar]+", inside):
        return info
    shapes: list[tuple[int, ...]] = []
    for text in inside.split(", "):
        times, star, shape = text.rpartition(" * ")
        sizes = [] if shape == "scalar" else shape.split("x")
        sizes_known = tuple(-1 if size == "?" else int(size) for size in sizes)
        shapes += [sizes_known] * (int(times) if star else 1)
    return replace(info, shapes=tuple(shapes))


def program(profile: Profile, steps: int = 10, **options: Any) -> Profile:
    """The profile of a program, each step of which was measured."""
    measured = MeasuredSteps(steps, steps, steps, steps)
    options = {"program_ns": 10**9, "measured": measured, **options}
    return replace(profile, program=Program("train.py", **options))


def tips(of: Profile) -> list[str]:
    return [*map(str, find_tips(of))]


def only_tip(of: Profile) -> str:
    (tip,) = tips(of)
    return tip


# The section


def test_nothing_to_say() -> None:
    assert tips(program(profile({}))) == []
    assert tips(program(profile_of())) == tips(profile_of()) == []


def test_tips_are_in_order() -> None:
    cells: Cells = {
        ("(data loading)", "data"): own(450 * MS, 10),
        ("(optimizer) AdamW", "optimizer"): own(120 * MS, 10),
    }
    facts = ProgramFacts((OptimizerFacts("AdamW", 150, True, False, "cpu"),))
    assert tips(program(profile(cells), facts=facts)) == [
        "The loop waits for data 45.0 % of the time (0.450s): give the DataLoader more "
        "workers (num_workers), or have it do less per sample.",
        "AdamW takes 12.0 % of the time (0.120s) for 150 tensors on cpu: "
        "AdamW(..., fused=True) does the same faster.",
    ]


# The loop


@pytest.mark.parametrize(("data_ns", "is_told"), [(100 * MS, True), (99 * MS, False)])
def test_data_loading(data_ns: int, is_told: bool) -> None:
    found = tips(program(profile({("(data loading)", "data"): own(data_ns, 10)})))
    assert bool(found) == is_told


@pytest.mark.parametrize(("waiting_ms", "is_told"), [(40, True), (39, False)])
def test_waiting_for_other_processes(waiting_ms: int, is_told: bool) -> None:
    cells: Cells = {
        ("(waiting for gradients)", "waiting"): own(waiting_ms * MS, 10),
        ("(communication) broadcast", "communication"): own(60 * MS, 20),
    }
    assert tips(program(profile(cells))) == is_told * [
        "Communication with other processes takes 10.0 % of the time (0.100s), the "
        "most in (communication) broadcast (0.060s). In that is the time in which this "
        "process waits for one that comes later: the one that communicates least is "
        "the one that the others wait for, and its own report says with what it is "
        "busy."
    ]


READS: Cells = {
    ("item(scalar)", "outside"): own(100 * MS, 10),
    ("Net > __bool__(1)", "forward"): own(200 * MS, 20),
    ("Net > getitem(8x4, 8)", "forward"): own(10 * MS, 10),
    ("Net > where(8)", "forward"): own(10 * MS, 10),
}


def test_reads_from_a_device() -> None:
    functions = {
        **call("item(scalar)", "float32@cuda"),
        **call("__bool__(1)", "bool@cuda"),
        **call("getitem(8x4, 8)", "float32@cuda", "bool@cuda"),
        **call("where(8)", "bool@cuda"),
    }
    assert only_tip(program(profile(READS, functions))) == (
        "Elements are read from a device about 5.0 times per step (__bool__ 2.0, item "
        "1.0, getitem 1.0, where 1.0), for about 32.0 % of the time (0.320s), the most "
        "in Net: __bool__(1): each time, the program waits until the device has done "
        "all before it, and prepares nothing meanwhile. Keep results on the device and "
        "read them every so many steps."
    )


def test_what_does_not_wait_for_a_device() -> None:
    on_cpu = {
        **call("item(scalar)", "float32@cpu"),
        **call("__bool__(1)", "bool@cpu"),
        **call("getitem(8x4, 8)", "float32@cuda", "int64@cuda"),
        **call("where(8)", "bool@cuda", "float32@cuda"),
    }
    assert tips(program(profile(READS, on_cpu))) == []
    assert tips(program(profile(READS))) == []  # nobody knows


@pytest.mark.parametrize(("calls", "is_told"), [(5, True), (4, False)])
def test_how_often_a_device_is_read(calls: int, is_told: bool) -> None:
    cells: Cells = {("item(scalar)", "outside"): own(100 * MS, calls)}
    functions = call("item(scalar)", "float32@mps")
    found = tips(program(profile(cells, functions)))
    assert [tip[:61] for tip in found] == is_told * [
        "Elements are read from a device about 0.5 times per step (ite"
    ]
    no_steps = tips(program(profile(cells, functions), steps=1))
    assert [tip.partition(" (item")[0] for tip in no_steps] == is_told * [
        "Elements are read from a device about 0.5 times per call of the model"
    ]


def small(calls: int, each_ns: int, device_ns: int = 0) -> dict[Any, Totals]:
    return {("Net > relu(8)", "forward"): own(calls * each_ns, calls, device_ns)}


@pytest.mark.parametrize(
    ("calls", "each_ns", "is_told"),
    [
        (2_010, 9_999, False),  # 2 % of the time
        (9_000, 9_999, False),
        (11_000, 9_999, True),
        (11_000, 10_000, False),
    ],
)
def test_small_functions(calls: int, each_ns: int, is_told: bool) -> None:
    found = tips(program(profile(small(calls, each_ns), call("relu(8)", "int8@cpu"))))
    assert found == is_told * [
        "About 1100 functions per step and their backward take 10.0us per call, 11.0 % "
        "of the time (0.110s), so short that calling them is a large part of it: larger"
        " batches take little longer; torch.compile calls fewer functions."
    ]


def test_small_functions_with_a_long_backward() -> None:
    key: tuple[str, Phase] = ("Net > relu(8)", "backward")
    for backward_ns, is_told in ((119 * MS, True), (120 * MS, False)):
        cells: Cells = {**small(10_000, 10_000), key: own(backward_ns, 12_000)}
        assert bool(tips(program(profile(cells)))) == is_told


@pytest.mark.parametrize(("steps", "is_told"), [(55, False), (54, True)])
def test_how_many_small_functions(steps: int, is_told: bool) -> None:
    cells = profile(small(11_000, 9_999))  # 200 and 203.7 per step
    assert bool(tips(program(cells, steps))) == is_told


@pytest.mark.parametrize(
    ("device_ns", "is_told"), [(0, False), (109 * MS, True), (110 * MS, False)]
)
def test_small_functions_on_a_device(device_ns: int, is_told: bool) -> None:
    """How busy it is has to be known."""
    cells = small(11_000, 9_500, device_ns)
    found = tips(program(profile(cells, call("relu(8)", "int8@cuda"))))
    assert bool(found) == is_told
    assert all('torch.compile (mode="reduce-overhead" on a GPU)' in t for t in found)


# Settings


def test_anomaly_detection() -> None:
    facts = ProgramFacts(detects_anomalies=True)
    assert only_tip(program(profile({}), facts=facts)) == (
        "Autograd's anomaly detection was on: it notes a traceback for every function "
        "and searches every gradient for NaN. Switch it off "
        "(torch.autograd.set_detect_anomaly) when you have found what you look for."
    )


FUSIBLE = OptimizerFacts("Adam", 1, True, False, "cuda")


@pytest.mark.parametrize(
    ("optimizer", "share_ns", "is_told"),
    [
        (FUSIBLE, 50 * MS, True),
        (FUSIBLE, 49 * MS, False),
        (FUSIBLE._replace(device="cpu"), 50 * MS, True),
        (FUSIBLE._replace(device="mps"), 50 * MS, False),
        (FUSIBLE._replace(device=""), 50 * MS, False),
        (FUSIBLE._replace(is_fused=True), 50 * MS, False),
        (FUSIBLE._replace(can_fuse=False), 50 * MS, False),
        (FUSIBLE._replace(name="SGD"), 50 * MS, True),
        (FUSIBLE._replace(name="SGD", device="cpu"), 50 * MS, False),
        (FUSIBLE._replace(name="Mine"), 50 * MS, False),
    ],
)
def test_optimizers(optimizer: OptimizerFacts, share_ns: int, is_told: bool) -> None:
    name = optimizer.name
    known = ModuleInfo(kind="optimizer")
    cells: Cells = {(f"(optimizer) {name}", "optimizer"): own(share_ns, 10)}
    took = profile(cells, {f"(optimizer) {name}": known})
    assert tips(program(took, facts=ProgramFacts((optimizer,)))) == is_told * [
        f"{name} takes 5.0 % of the time (0.050s) for 1 tensor on {optimizer.device}: "
        f"{name}(..., fused=True) does the same faster."
    ]


@pytest.mark.parametrize(("recompute_ns", "is_told"), [(150, True), (149, False)])
def test_recomputing(recompute_ns: int, is_told: bool) -> None:
    cells: Cells = {
        ("Net > Net.a", "recompute"): own(50 * MS, 10),
        ("Net > Net.b", "recompute"): own(20 * MS, 10),
        ("Net > Net.b > tanh(8)", "recompute"): own((recompute_ns - 70) * MS, 10),
    }
    took = profile(cells, modules={"Net.a": "Block", "Net.b": "Block"})
    assert tips(program(took)) == is_told * [
        "Recomputing (activation checkpointing) takes about 15.0 % of the time "
        "(0.150s), the most in Net.b (0.100s): if memory allows, checkpoint less."
    ]


# torch.compile


def compiled(ns: int = 0, **facts: Any) -> Profile:
    summary = CompilationSummary(timed=1, timed_ns=ns, **facts)
    return program(profile({}), compilation=summary)


def graph(place: str, reason: str = "", failure: str = "") -> CompiledGraph:
    return CompiledGraph(
        "forward", place, "0/1", 0, 0, recompile_reason=reason, failure=failure
    )


def test_graph_breaks() -> None:
    once = GraphBreak("forward", "net.py:3", "print", 1)
    assert only_tip(compiled(graph_breaks=(once,))) == (
        "torch.compile broke graphs 1 time, most at forward (net.py:3) (print): code "
        "around a break is compiled apart and left to Python in between. "
        "fullgraph=True makes an error of it."
    )
    often = GraphBreak("", "", "long\n  " + "reason " * 40, 2)
    tip = only_tip(compiled(graph_breaks=(once, often)))
    assert tip.startswith(
        "torch.compile broke graphs 3 times, most at an unknown place (long reason re"
    )
    assert "reason...): code" in tip


def test_recompiles() -> None:
    graphs = (
        graph("net.py:1"),
        graph("net.py:1", "size mismatch at index 0"),
        graph("net.py:7", "Net.step == 1"),
        graph("net.py:7", "Net.step == 2"),
        graph("net.py:7", "Net.step == 2"),
    )
    assert only_tip(compiled(graphs=graphs)) == (
        "torch.compile compiled code again 4 times, most often forward (net.py:7) "
        "(Net.step == 2): a number that it depends on changes: give it as a tensor, or "
        "keep it."
    )
    assert tips(compiled(graphs=graphs[:1])) == []
