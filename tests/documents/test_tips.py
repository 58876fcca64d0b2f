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


@pytest.mark.parametrize(("outside_ms", "is_told"), [(250, True), (249, False)])
def test_code_outside(outside_ms: int, is_told: bool) -> None:
    def took(ms: int, **facts: Any) -> Profile:
        cells: Cells = {
            ("(outside modules)", "outside"): own(ms * MS, 0),
            ("Net > relu(1)", "forward"): own(0, 1),
        }
        return profile(cells, **facts)

    first, later = took(900, steps=1), took(outside_ms, steps=10)
    parts = (replace(first.parts[0], name="start-up"), later.parts[0])
    found = tips(program(replace(later, parts=parts)))
    assert found == is_told * [
        "After the start-up, about 25.0 % of the time (0.250s) is in no module, "
        "function, backward, optimizer or DataLoader, but in other code of the "
        "program, such as preparing batches, logging or saving."
    ]


def test_code_outside_that_may_be_functions() -> None:
    cells: Cells = {("(outside modules)", "outside"): own(900 * MS, 0)}
    assert tips(program(profile(cells))) == []


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


@pytest.mark.parametrize(("ns", "is_told"), [(200 * MS, True), (199 * MS, False)])
def test_compile_time(ns: int, is_told: bool) -> None:
    took = profile({("(torch.compile)", "compiling"): own(ns)})
    infos = {**took.modules, "(torch.compile)": ModuleInfo(kind="compiling")}
    assert tips(program(replace(took, modules=infos))) == is_told * [
        "torch.compile takes 20.0 % of the time (0.200s): it pays in longer runs. "
        "Where a block is repeated, compiling the block instead of the whole model is "
        "quicker."
    ]


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


def test_what_could_not_be_compiled() -> None:
    graphs = (graph("net.py:1", failure="Unsupported: generator"),)
    assert only_tip(compiled(graphs=graphs)) == (
        "torch.compile gave up 1 time, most often forward (net.py:1) (Unsupported: "
        "generator): this code ran as it is written."
    )


# Attention

ATTENTION: Cells = {
    ("Net > Net.attention > matmul(2x4x16x8, 2x4x8x16)", "forward"): own(10 * MS, 10),
    ("Net > Net.attention > softmax(2x4x16x16)", "forward"): own(10 * MS, 10),
    ("Net > Net.attention > softmax(2x4x16x16)", "backward"): own(10 * MS, 10),
    ("Net > Net.attention > dropout(2x4x16x16)", "forward"): own(10 * MS, 10),
    ("Net > Net.attention > matmul(2x4x16x16, 2x4x16x8)", "forward"): own(20 * MS, 10),
}
MODULES = {"Net.attention": "Attention"}


def replaced(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def attention(*without: str, **renamed: str) -> list[str]:
    """Tips on the attention above, without some functions, or with other ones."""
    cells: dict[tuple[str, Phase], Totals] = {}
    for (path, phase), totals in ATTENTION.items():
        if not any(f" {name}(" in path for name in without):
            key = replaced(path, renamed), phase
            cells[key] = cells[key] + totals if key in cells else totals
    return tips(program(profile(cells, modules=MODULES)))


FOUND = (
    "Attention as matmul, softmax and matmul in Net.attention takes about 5.0 % of the "
    "time (0.050s): torch.nn.functional.scaled_dot_product_attention does it in one "
    "function, faster, and where it can, without attention weights in memory."
)


def test_attention() -> None:
    assert attention() == [FOUND]
    assert attention("dropout") == [FOUND]
    assert attention("softmax") == attention("matmul") == []
    fused = "scaled_dot_product_attention"
    assert attention(dropout=fused) == []


def test_attention_that_takes_less() -> None:
    softmax = "Net > Net.attention > softmax(2x4x16x16)"
    cells: Cells = {**ATTENTION, (softmax, "backward"): own(9 * MS, 10)}
    assert tips(program(profile(cells, modules=MODULES))) == []


def test_attention_in_other_words() -> None:
    by_bmm = {"matmul": "bmm", "2x4x16x": "8x16x", "2x4x8x": "8x8x"}
    assert attention(**by_bmm) == [FOUND]
    # einsum("bqhd,bkhd->bhqk") and einsum("bhqk,bkhd->bqhd")
    einsum = {
        "matmul(2x4x16x8, 2x4x8x16)": "einsum(2x16x4x8, 2x16x4x8)",
        "matmul(2x4x16x16, 2x4x16x8)": "einsum(2x4x16x16, 2x16x4x8)",
    }
    assert attention(**einsum) == [FOUND]


def test_attention_with_softmax_as_a_module() -> None:
    cells = {
        (path.replace("> softmax", "> Net.attention.soft > softmax"), phase): totals
        for (path, phase), totals in ATTENTION.items()
    }
    modules = {**MODULES, "Net.attention.soft": "Softmax"}
    assert tips(program(profile(cells, modules=modules))) == [FOUND]


def test_attention_in_several_modules() -> None:
    cells = {
        (path.replace("attention", f"{number}"), phase): totals
        for number in "ab"
        for (path, phase), totals in ATTENTION.items()
    }
    took = profile(cells, modules={"Net.a": "Attention", "Net.b": "Attention"})
    assert "matmul in 2 modules (Attention) takes about 10.0 % of" in only_tip(
        program(took)
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # weights, as of a router among experts
        ("matmul(2x16x8, 8x16)", "matmul(2x16x16, 2x16x8)"),
        ("linear(2x16x8, 16x8)", "matmul(2x16x16, 2x16x8)"),
        # nothing is multiplied by what softmax returns
        ("matmul(2x16x8, 2x8x16)", "matmul(2x16x8, 2x8x16)"),
        # one product, in which all sizes are the same
        ("matmul(2x16x16, 2x16x16)", "tanh(2x16x16)"),
        ("matmul(2x16x8, 2x8x16)", "matmul(...)"),
        ("matmul(other shapes)", "matmul(2x16x16, 2x16x8)"),
    ],
)
def test_what_is_no_attention(before: str, after: str) -> None:
    cells: Cells = {
        (f"Net > {name}", "forward"): own(100 * MS, 10)
        for name in (before, "softmax(2x16x16)", after)
    }
    assert tips(program(profile(cells))) == []


def test_attention_over_sizes_that_are_all_the_same() -> None:
    cells: Cells = {
        ("Net > matmul(2x16x16, 2x16x16)", "forward"): own(100 * MS, 20),
        ("Net > softmax(2x16x16)", "forward"): own(100 * MS, 10),
    }
    assert "matmul in Net takes about 20.0 %" in only_tip(program(profile(cells)))


# Types

DOUBLE = ("float64@cpu", "float64@cpu")


@pytest.mark.parametrize(("backward_ns", "is_told"), [(5 * MS, True), (4 * MS, False)])
def test_float64(backward_ns: int, is_told: bool) -> None:
    cells: Cells = {
        ("Net > linear(2x3, 4x3)", "forward"): own(10 * MS, 10),
        ("Net > linear(2x3, 4x3)", "backward"): own(backward_ns, 10),
        ("Net > tanh(2x3)", "forward"): own(5 * MS, 10),
    }
    functions = {**call("linear(2x3, 4x3)", *DOUBLE), **call("tanh(2x3)", *DOUBLE[1:])}
    assert tips(program(profile(cells, functions))) == is_told * [
        "Functions with float64 inputs take about 2.0 % of the time (0.020s), the most "
        "in Net: linear(2x3, 4x3) (0.015s): float32 takes half the memory and about "
        "half the time, on most GPUs far less. NumPy makes float64 by default."
    ]


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("mul(2x3, scalar)", ("float32@cpu", "float64@cpu")),  # computed in float32
        ("mul(2x3, 2x3)", ("mixed",)),
        ("mul(2x3, 2x3)", ("?", "?")),
        ("mul(2x3, 2x3)", ()),
        ("mul(2x3, 2x3)", ("float32@cpu", "complex128@cpu")),
    ],
)
def test_what_is_no_float64(name: str, inputs: tuple[str, ...]) -> None:
    cells: Cells = {(f"Net > {name}", "forward"): own(500 * MS, 10)}
    assert tips(program(profile(cells, call(name, *inputs)))) == []


def test_times_on_a_device() -> None:
    """Of 400 ms on the device, although calling took 1 ms of a second."""
    cells: Cells = {
        ("Net > tanh(2x3)", "forward"): own(1 * MS, 10, device_ns=100 * MS),
        ("Net > Net.a", "forward"): own(1 * MS, 10, device_ns=300 * MS),
    }
    functions = call("tanh(2x3)", "float64@cuda")
    took = profile(cells, functions, {"Net.a": "Linear"}, devices=("cuda:0",))
    assert only_tip(program(took)).startswith(
        "Functions with float64 inputs take about 25.0 % of the time on cuda:0 (0.100s)"
        ", all of it in Net: tanh(2x3): float32"
    )


def product(
    name: str,
    *inputs: str,
    ns: int = 50 * MS,
    is_trained: bool = False,
    autocast: str = "",
    **facts: Any,
) -> list[str]:
    """Tips on a program with a function call like that."""
    cells: dict[Any, Totals] = {(f"Net > {name}", "forward"): own(ns, 10)}
    if is_trained:
        cells[f"Net > {name}", "backward"] = own(1, 10)
    took = profile(cells, call(name, *inputs, autocast=autocast))
    return tips(program(took, facts=ProgramFacts(**facts)))


MIXED = ("bfloat16@cpu", "float32@cpu")


def test_autocast_in_inference() -> None:
    assert product("linear(8x8, 8x8)", *MIXED) == [
        "Autocast converts inputs (bfloat16 and float32) of products without a "
        "backward that take about 5.0 % of the time (0.050s), all of it in Net: "
        "linear(8x8, 8x8): for inference, convert the model once "
        "(model.to(torch.bfloat16), say)."
    ]
    assert product("linear(8x8, 8x8)", *MIXED, ns=49 * MS) == []
    assert product("linear(8x8, 8x8)", *MIXED, is_trained=True) == []
    assert product("linear(8x8, 8x8)", *MIXED[:1], "int8@cpu") == []
    assert product("linear(8x8, scalar)", *MIXED) == []
    assert product("mul(8x8, 8x8)", *MIXED) == []
    assert len(product("conv2d(8x8x8x8, 8x8x1x1)", *MIXED)) == 1
    # The weights and the inputs of layers after a normalisation: single precision both.
    single = product("linear(8x8, 8x8)", *MIXED[1:] * 2, autocast="bfloat16")
    assert single == product("linear(8x8, 8x8)", *MIXED)
    assert product("linear(8x8, 8x8)", "float64@cpu", autocast="bfloat16")[1:] == []


HALF = ("float16@cuda", "float16@cuda")


def test_sizes_that_do_not_suit_tensor_cores() -> None:
    assert product("linear(2x32x64, 50257x64)", *HALF) == [
        "Half-precision products of sizes that are no multiple of 8 (50257) take about "
        "5.0 % of the time (0.050s), all of it in Net: linear(2x32x64, 50257x64): "
        "tensor cores work best on multiples of 8, to which sizes can be padded."
    ]
    assert product("linear(2x32x64, 50257x64)", *HALF, ns=49 * MS) == []
    on_cpu = ("float16@cpu", "float16@cpu")
    assert product("linear(2x32x64, 50257x64)", *on_cpu) == []
    single = ("float32@cuda", "float32@cuda")
    assert product("linear(2x32x64, 50257x64)", *single) == []
    autocast = ("bfloat16@cuda", "float32@cuda")
    trained = product("linear(8x60, 64x60)", *autocast, is_trained=True)
    assert [tip[:62] for tip in trained] == [
        "Half-precision products of sizes that are no multiple of 8 (60"
    ]
    made = product("linear(8x60, 64x60)", *single, autocast="float16", is_trained=True)
    assert made == trained


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("linear(31x64, 256x64)", False),  # rows may be as many as they are
        ("linear(32x60, 256x60)", True),
        ("mm(31x64, 64x256)", False),
        ("mm(32x64, 64x255)", True),
        ("bmm(3x32x60, 3x60x64)", True),
        ("bmm(3x32x64, 3x64x64)", False),
        ("matmul(2x3x32x64, 2x3x64x31)", True),
        ("matmul(32x60, 60)", False),  # a vector
        ("addmm(60, 32x64, 64x64)", False),
        ("addmm(64, 32x60, 60x64)", True),
        ("baddbmm(3x32x60, 3x32x64, 3x64x60)", True),
        ("einsum(32x60, 60x64)", False),
        ("mul(32x60, 32x60)", False),
        ("linear(?x64, 256x64)", False),
        ("linear(other shapes)", False),
    ],
)
def test_which_sizes_matter(name: str, is_told: bool) -> None:
    assert bool(product(name, *HALF, *HALF[:1])) == is_told


def test_tf32() -> None:
    single = ("float32@cuda", "float32@cuda")
    unused: Any = {"leaves_tf32_unused": True}
    assert product("linear(31x64, 255x64)", *single, **unused) == [
        "float32 matrix products take about 5.0 % of the time (0.050s), all of it in "
        "Net: linear(31x64, 255x64): if 10 bits of precision will do for their inputs, "
        'torch.set_float32_matmul_precision("high") has tensor cores compute them.'
    ]
    assert product("linear(31x64, 255x64)", *single, ns=49 * MS, **unused) == []
    assert product("linear(31x64, 255x64)", *single) == []
    assert product("linear(31x64, 255x64)", "float32@cpu", **unused) == []
    assert product("tanh(31x64)", "float32@cuda", **unused) == []
    made = product(
        "linear(8x8, 8x8)", *single, autocast="bfloat16", is_trained=True, **unused
    )
    assert made == []


def test_tf32_next_to_autocast() -> None:
    cells: Cells = {
        ("Net > linear(8x8, 8x8)", "forward"): own(500 * MS, 10),
        ("Net > tanh(8x8)", "forward"): own(1 * MS, 10),
    }
    functions = {
        **call("linear(8x8, 8x8)", "float32@cuda", "float32@cuda"),
        **call("tanh(8x8)", "bfloat16@cuda"),
    }
    facts = ProgramFacts(leaves_tf32_unused=True)
    assert tips(program(profile(cells, functions), facts=facts)) == []
