"""The first screen of a report: what it says, to the letter, and how large it gets."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import pytest

from tests.helpers import FUNCTIONS, STEP, hand_built, own, table
from torchprof_hooks import Profile
from torchprof_hooks.capture.record.step_counter import StepCounter
from torchprof_hooks.profiles.memory import MemorySummary
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.program.program_facts import (
    OptimizerFacts,
    ProgramFacts,
)
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.profiles.program.strata import Strata
from torchprof_hooks.profiles.program.stratum import Stratum
from torchprof_hooks.profiles.ranks.provenance import Provenance
from torchprof_hooks.profiles.step_times import Bucket, StepTimes
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.profiles.trace.device_idle import DeviceIdle, DeviceUse, IdleRow
from torchprof_hooks.reports.screen.screen import profile_screen, program_screen
from torchprof_hooks.reports.screen.terminal import takes_colour, width_of
from torchprof_hooks.reports.table import display_width

MS = 10**6
#: Kinds of rows that are no calls, each with a phase of its name.
COLD: tuple[
    Literal["optimizer", "data", "waiting", "communication", "compiling", "outside"],
    ...,
]
COLD = ("optimizer", "data", "waiting", "communication", "compiling", "outside")
OUTSIDE = ModuleInfo(kind="outside")
ADAMW = "(optimizer) AdamW"


def ms(milliseconds: float, calls: int = 0) -> Totals:
    return own(round(milliseconds * MS), calls)


def first_line(profile: Profile, start: str) -> str:
    lines = profile_screen(profile).splitlines()
    return next(line for line in lines if line.startswith(start))


def check_size(screen: str, width: int = 120, lines: int = 40) -> None:
    assert len(screen.splitlines()) <= lines
    assert max(map(display_width, screen.splitlines())) <= width
    assert screen.replace("\n", "").isprintable()


# What it says


def steps_of(profile: Profile, *durations_ms: int, first: bool) -> Profile:
    counter = StepCounter()
    for number, duration in enumerate(durations_ms):
        counter.count(duration * MS, 1, is_first=first and number == 0)
    times = counter.times()
    return replace(profile, steps=len(durations_ms), step_times=times)


#: A language model of four blocks; the first step has all that came before, too.
NAMES: dict[str, ModuleInfo | str] = {
    "LM": ModuleInfo("LM", place="called first at train.py:31"),
    **{f"LM.blocks.{n}": "Block" for n in range(4)},
    **{f"LM.blocks.{n}.mlp": "Linear" for n in range(4)},
    **{f"LM.blocks.{n}.norm": "LayerNorm" for n in range(4)},
    "loss(8)": ModuleInfo("loss", "function", place="called first at train.py:32"),
    ADAMW: ModuleInfo(kind="optimizer"),
    "(outside modules)": OUTSIDE,
}


def language_model(calls: int, outside_ms: int) -> Profile:
    cells: dict[Any, Totals] = {("LM", "forward"): ms(2, calls)}
    for n in range(4):
        block = f"LM > LM.blocks.{n}"
        cells[block, "forward"] = ms(1, calls)
        mlp = f"{block} > {block[5:]}.mlp"
        cells[mlp, "forward"] = ms(0, calls)
        cells[f"{mlp} > linear(8x4, 4x4)", "forward"] = ms(5, calls)
        cells[f"{mlp} > linear(8x4, 4x4)", "backward"] = ms(10)
        cells[f"{block} > {block[5:]}.norm", "forward"] = ms(0.5, calls)
    cells["loss(8)", "forward"] = ms(3, calls)
    cells[ADAMW, "optimizer"] = ms(8, calls)
    cells["(outside modules)", "outside"] = ms(outside_ms)
    return hand_built(cells, NAMES)


def program() -> ProgramProfile:
    start = steps_of(language_model(1, outside_ms=921), 1000, first=True)
    loop = steps_of(language_model(4, outside_ms=21), 20, 20, 20, 40, first=False)
    loop = replace(
        loop, step_times=loop.step_times._replace(evaluations=2, evaluation_ns=6 * MS)
    )
    strata = Strata(
        warm_up=Stratum(start, 1, start.wall_ns),
        functions=Stratum(loop, 4, loop.wall_ns),
    )
    facts = ProgramFacts((OptimizerFacts("AdamW", 12, True, False, "cpu"),))
    return ProgramProfile("a.py", strata, 2 * 10**9, 3 * MS, facts=facts)


def test_the_screen_of_a_program() -> None:
    # The loop: forward 2 + 4 * (1 + 5 + 0.5) = 28, backward 40, the optimizer 8, 3 in
    # the loss and 21 outside; the start is the same and 900 ms outside.
    assert program_screen(program(), width=88) == table("""
torchprof_hooks: a.py, 1.10sec wall: 1.00sec start-up with the first step, then 100.00ms
5 steps: first 1.00sec, then 25.00ms (median 20.00ms, 90 % within 40.00ms), 2 evaluation
  calls of 3.00ms
Hottest module: LM.blocks.*.mlp, 60.0 %: 4 Linear, forward 20.0 %, backward 40.0 %
Forward or backward: backward, 40.0 %

phase               start-up     loop     %
backward             40.00ms  40.00ms  40.0  ########################################
forward              28.00ms  28.00ms  28.0  ############################
outside of modules  924.00ms  24.00ms  24.0  ########################
optimizers            8.00ms   8.00ms   8.0  ########

module                 calls  forward  backward    total     %  own %
LM                         4  28.00ms   40.00ms  68.00ms  68.0    2.0
  blocks.*: 4 Block       16  26.00ms   40.00ms  66.00ms  66.0    4.0
    mlp: 4 Linear         16  20.00ms   40.00ms  60.00ms  60.0   60.0  <- hottest
    norm: 4 LayerNorm     16   2.00ms             2.00ms   2.0    2.0

function  calls  forward  backward    total     %
linear       16  20.00ms   40.00ms  60.00ms  60.0
loss          4   3.00ms             3.00ms   3.0

line of the program    total     %
train.py:31 LM       68.00ms  68.0
train.py:32 loss      3.00ms   3.0

Tip: AdamW takes 8.0% of the time (0.008s) for 12 tensors on cpu: AdamW(..., fused=True)
     does the same faster.
Measuring took about 0.3 % of all, the start-up included
More: --full, --html FILE
""")


def begun_with_evaluations(count: int) -> ProgramProfile:
    """No optimizer was made before these: the start-up ended with the last of them."""
    found = program()
    start = found.strata.warm_up
    times = StepTimes(evaluations=count, evaluation_ns=start.profile.wall_ns)
    start = start._replace(profile=replace(start.profile, steps=0, step_times=times))
    return replace(found, strata=replace(found.strata, warm_up=start))


@pytest.mark.parametrize(
    ("count", "end"),
    [(1, "the first evaluation call"), (64, "the first 64 evaluation calls")],
)
def test_a_start_up_that_ends_with_evaluation_calls(count: int, end: str) -> None:
    title = program_screen(begun_with_evaluations(count)).splitlines()[0]
    assert f": 1.00sec start-up with {end}, then 100.00ms" in title


def test_the_first_line_names_the_rank_where_there_are_several() -> None:
    def title(*processes: Provenance, width: int = 120) -> str:
        found = replace(program(), provenance=processes)
        return program_screen(found, width=width).splitlines()[0]

    alone, one, other = Provenance(), Provenance(1, 4), Provenance(2, 4)
    assert title(one).startswith("torchprof_hooks: rank 1 of 4, a.py, 1.10sec wall: ")
    assert title(one, width=60) == "torchprof_hooks: rank 1 of 4, a.py"
    for processes in [(), (alone,), (one, other)]:
        assert title(*processes).startswith("torchprof_hooks: a.py, 1.10sec wall: ")
    loop = replace(program().strata.functions.profile, provenance=(one,))
    screen = profile_screen(loop)
    assert screen.startswith("torchprof_hooks: rank 1 of 4, LM, 100.00ms wall")
    header = loop.report(max_rows=3)
    assert header.startswith("torchprof_hooks: rank 1 of 4, 100.00ms wall, ")


def test_without_a_first_step_there_is_no_start() -> None:
    left_out = program_screen(replace(program(), has_warm_up=False))
    assert "\nphase                  time     %\nbackward  " in left_out
    assert "start-up" not in left_out
    assert "\nMeasuring took about 0.3 %\n" in left_out
    only = replace(program(), strata=Strata(warm_up=program().strata.warm_up))
    screen = program_screen(only)
    assert "\noutside of modules  924.00ms  92.4  ######" in screen
    assert "start-up" not in screen


RL = hand_built(
    {
        ("Policy", "forward"): ms(2, calls=100),
        ("Policy > Policy.0", "forward"): ms(8, calls=100),
        ("Policy", "backward"): ms(0),
        ("Policy > Policy.0", "backward"): ms(10),
        ("(data loading)", "data"): ms(5),
        (ADAMW, "optimizer"): ms(5, calls=10),
        ("(outside modules)", "outside"): ms(170),
    },
    {
        "Policy": ModuleInfo("Policy", place="called first at act.py:7"),
        "Policy.0": "Linear",
        "(data loading)": ModuleInfo(kind="data"),
        ADAMW: ModuleInfo(kind="optimizer"),
        "(outside modules)": OUTSIDE,
    },
    steps=10,
    overhead_ns=MS,
    core="native",
)


def test_modules_that_do_not_matter() -> None:
    assert profile_screen(RL, width=88) == table("""
torchprof_hooks: Policy, 200.00ms wall
10 steps of 20.00ms
Hottest module: Policy.0, 9.0 %: Linear, forward 4.0 %, backward 5.0 %
Forward or backward: neither; outside of modules, 85.0 %; forward 5.0 %; backward 5.0 %

phase                   time     %
outside of modules  170.00ms  85.0  ########################################
forward              10.00ms   5.0  ###
backward             10.00ms   5.0  ###
optimizers            5.00ms   2.5  ##
data loading          5.00ms   2.5  ##

module       calls  forward  backward    total     %  own %
Policy         100  10.00ms   10.00ms  20.00ms  10.0    1.0
  0: Linear    100   8.00ms   10.00ms  18.00ms   9.0    9.0  <- hottest

line of the program    total     %
act.py:7 Policy      20.00ms  10.0

Measuring took about 0.5 % (native core)
More: report(full=True), to_html(path)
""")


def test_one_module() -> None:
    profile = hand_built({("Net", "forward"): ms(4, calls=2)}, {"Net": "Net"})
    assert profile_screen(profile) == table("""
torchprof_hooks: Net, 4.00ms wall
Hottest module: Net, 100.0 %: forward 100.0 %
Forward or backward: forward, 100.0 %

phase      time      %
forward  4.00ms  100.0  ########################################

module  calls  forward   total      %  own %
Net         2   4.00ms  4.00ms  100.0  100.0  <- hottest

Measuring took about 0.0 %
More: report(full=True), to_html(path)
""")


def test_nothing() -> None:
    assert profile_screen(Profile(not_measured=("FLOPs",))) == table("""
torchprof_hooks: 0.00ns wall
Measuring took about 0.0 %; not measured: FLOPs
More: report(full=True), to_html(path)

No module was called: there is nothing to report.
profile() measures the thread that enters it: other threads need one of their own.
""")


def test_no_steps_and_functions_alone() -> None:
    profile = hand_built({("relu(3)", "forward"): ms(4, calls=2)}, {})
    screen = profile_screen(profile)
    assert "steps" not in screen
    assert "Hottest" not in screen
    assert "\nrelu          2   4.00ms  4.00ms  100.0\n" in screen


def test_the_peak_of_memory_and_its_owner() -> None:
    memory = MemorySummary("cuda:0", False, 3 << 20, ("LM", "LM.blocks.0"), "backward")
    profile = replace(language_model(1, 1), memory=memory)
    peak = "Memory: peak 3.00MB in LM.blocks.0 (backward), of cuda:0"
    assert first_line(profile, "Memory") == peak
    of_cpu = replace(memory, source="cpu", peak_path=("(outside modules)",))
    peak = "Memory: peak 3.00MB in (outside modules), of tensors on the CPU"
    assert first_line(replace(profile, memory=of_cpu), "Memory") == peak
    of_process = replace(of_cpu, is_net=True)
    peak = "Memory: peak at least 3.00MB in (outside modules), of the process"
    assert first_line(replace(profile, memory=of_process), "Memory") == peak
    none = replace(profile, memory=MemorySummary(unavailable="no glibc"))
    assert first_line(none, "Memory") == "Memory: not measured: no glibc"


def test_a_device_that_waits_for_the_host() -> None:
    waits = hand_built(
        {("Net", "forward"): ms(5, calls=1)},
        {"Net": "Net"},
        devices=("cuda",),
        device_asked=40,
        device_waits=31,
    )
    said = (
        "cuda waited for the host at 77.5 % of the begins and ends of calls: its times "
        "are mostly waiting"
    )
    assert first_line(waits, "Device: ") == f"Device: {said}"
    assert said in waits.report(full=True)
    # It was behind now and then; it was hardly ever asked; it is not known.
    for asked, waited in ((40, 29), (19, 19), (0, 0)):
        other = replace(waits, device_asked=asked, device_waits=waited)
        assert said[:40] not in other.report(full=True)
    twice = waits.merge(waits)
    assert (twice.device_asked, twice.device_waits) == (80, 62)


def on_device(host_ms: float, device_ms: float) -> Totals:
    return replace(ms(host_ms, calls=1), device_self_ns=round(device_ms * MS))


#: The host launches, and waits for the device in the loss.
BUSY = hand_built(
    {
        ("Net", "forward"): on_device(2, 0),
        ("Net > Net.large", "forward"): on_device(1, 30),
        ("Net > Net.large > linear(8x8, 8x8)", "forward"): on_device(1, 10),
        ("Net > Net.large", "backward"): on_device(1, 50),
        ("Net > Net.small", "forward"): on_device(5, 6),
        ("Net > Net.small > relu(8x8)", "forward"): on_device(3, 2),
        ("Net > Net.small", "backward"): on_device(2, 2),
        ("(outside modules)", "outside"): on_device(85, 0),
    },
    {
        "Net": "Net",
        "Net.large": "Linear",
        "Net.small": "ReLU",
        "linear(8x8, 8x8)": ModuleInfo("linear", "function"),
        "relu(8x8)": ModuleInfo("relu", "function"),
        "(outside modules)": OUTSIDE,
    },
    devices=("cuda",),
    device_asked=40,
    device_waits=4,
)


def test_a_device_that_is_always_busy() -> None:
    assert first_line(BUSY, "Hottest") == (
        "Hottest module on cuda: Net.large, 90.0 %: Linear, forward 40.0 %, backward "
        "50.0 %"
    )
    assert first_line(BUSY, "Forward") == (
        "Forward or backward on cuda: backward, 52.0 %"
    )
    lines = profile_screen(BUSY).splitlines()
    [marked] = [line for line in lines if line.endswith("<- hottest")]
    assert "large: Linear" in marked
    functions = lines.index(next(line for line in lines if line.startswith("function")))
    assert [line.split()[0] for line in lines[functions + 1 :][:2]] == [
        "linear",
        "relu",
    ]


@pytest.mark.parametrize(("asked", "waits"), [(40, 20), (19, 0), (0, 0)])
def test_a_device_that_waits_or_is_not_known(asked: int, waits: int) -> None:
    other = replace(BUSY, device_asked=asked, device_waits=waits)
    assert first_line(other, "Hottest").startswith("Hottest module: Net.small")
    assert first_line(other, "Forward").startswith("Forward or backward: neither")


def test_layers_of_other_classes_are_not_folded_together() -> None:
    kinds = ["Conv2d", "ReLU", "Conv2d", "ReLU"]
    profile = hand_built(
        {(f"Net > Net.{n}", "forward"): ms(n + 1, calls=1) for n in range(4)},
        {"Net": "Net", **{f"Net.{n}": kind for n, kind in enumerate(kinds)}},
    )
    labels = [line.split("  1")[0] for line in profile_screen(profile).splitlines()]
    assert any(label.startswith("  *: 2 ReLU ") for label in labels)
    assert any(label.startswith("  *: 2 Conv2d ") for label in labels)


def test_the_hottest_layers_are_of_one_class() -> None:
    """In a Sequential, modules of all classes have numbers for names."""
    cells: dict[Any, Totals] = {}
    names = {"Net": "Net"}
    for stage, (place, kind) in product(range(3), enumerate(("Conv2d", "ReLU"))):
        name = f"Net.{stage}.{place}"
        cells[f"Net > {name}", "forward"] = ms(20 - 10 * place, calls=1)
        names[name] = kind
    profile = hand_built(cells, names)
    screen = profile_screen(profile)
    assert "\nHottest module: Net.*.*, 66.7 %: 3 Conv2d, forward 66.7 %\n" in screen
    marked = [line for line in screen.splitlines() if line.endswith("  <- hottest")]
    assert len(marked) == 1
    assert "3 Conv2d" in marked[0]


def test_the_hottest_layers_are_shown_however_many_others_take_more() -> None:
    """Thirty wrappers of wrappers, each of which takes more with what it calls; the
    hottest layers are below one that takes little."""
    cells: dict[Any, Totals] = {}
    for outer, inner in product(range(30), range(3)):
        path = f"Net > Net.w{'x' * outer} > Net.w{'x' * outer}.v{'y' * inner}"
        cells[path, "forward"] = ms(10, calls=1)
    cells["Net > Net.quiet > Net.quiet.hot", "forward"] = ms(11, calls=1)
    names = {name for path, _ in cells for name in path.split(" > ")}
    profile = hand_built(cells, {name: name.rpartition(".")[2] for name in names})
    screen = profile_screen(profile)
    assert "\nHottest module: Net.quiet.hot, 1.2 %: hot, forward" in screen
    quiet = screen.splitlines().index(first_line(profile, "  quiet "))
    below = screen.splitlines()[quiet + 1]
    assert below.startswith("    hot ")
    assert below.endswith("  <- hottest")
    check_size(screen)


def test_phases_that_are_too_many_are_one_line() -> None:
    names = {f"({kind})": ModuleInfo(kind=kind) for kind in COLD}
    profile = hand_built(
        {
            ("Net", "forward"): ms(50, calls=1),
            **{(f"({kind})", kind): ms(8 - n) for n, kind in enumerate(COLD)},
        },
        {"Net": "Net", **names},
    )
    lines = profile_screen(profile).splitlines()
    phases = lines[lines.index("") + 2 :]
    phases = phases[: phases.index("")]
    assert len(phases) == 6
    assert phases[-1].startswith("all else ")
    assert " 7.00ms " in phases[-1]  # 4 and 3


# How large it gets

HOSTILE = (
    "x" * 500,
    "\N{CJK UNIFIED IDEOGRAPH-5B57}" * 300,
    "line\nend\r\ttab\x1b[31m\x07\u202ered",
    "e\N{COMBINING ACUTE ACCENT}" * 200,
    "<script>alert(1)</script>",
    "\ud800",
)


def hostile_program(name: str) -> ProgramProfile:
    """Everything has that name, or a part of it, and there is as much as there can be
    of everything."""
    cells: dict[Any, Totals] = {}
    infos: dict[str, ModuleInfo | str] = {}
    path = f"Net{name}"
    infos[path] = ModuleInfo(f"Net{name}", place=f"called first at {name}.py:3")
    for n in range(30):
        inner = f"Net{name}.{'abcdefghij'[n % 10]}{name}{'z' * n}"
        infos[inner] = f"Class{name}{n}"
        cells[f"{path} > {inner}", "forward"] = ms(10 + n, calls=3)
        cells[f"{path} > {inner} > f{n}{name}(2x3)", "backward"] = ms(30 + n)
        function = f"g{n}{name}()"
        infos[function] = ModuleInfo(function, "function", place=f"made at {name}:{n}")
        cells[function, "forward"] = ms(9 + n, calls=2)
    for kind in COLD[:-1]:
        infos[f"({kind}) {name}"] = ModuleInfo(kind=kind)
        cells[f"({kind}) {name}", kind] = ms(400, calls=3)
    infos["(outside modules)"] = OUTSIDE
    cells["(outside modules)", "outside"] = ms(3000)
    memory = MemorySummary(f"cuda{name}", True, 9, (path,), "forward")
    whole = hand_built(
        cells,
        infos,
        memory=memory,
        not_measured=(name, "another"),
        steps=1,
        aborted_calls=3,
        undivided_passes=4,
        core=name,
        core_reason=name,
    )
    whole = steps_of(whole, 10, 20, 30, first=False)
    strata = Strata(
        warm_up=Stratum(whole, 1, whole.wall_ns),
        phases=Stratum(whole, 9, whole.wall_ns),
        functions=Stratum(whole, 3, whole.wall_ns),
    )
    optimizers = tuple(
        OptimizerFacts(kind, 9, True, False, "cpu") for kind in ("Adam", "AdamW")
    )
    facts = ProgramFacts(optimizers, detects_anomalies=True, leaves_tf32_unused=True)
    return ProgramProfile(f"{name} {name}\n{name}", strata, 10**9, 10**9, facts=facts)


@pytest.mark.parametrize(
    "name",
    ["", *HOSTILE],
    ids=["usual", "long", "wide", "controls", "combining", "tags", "surrogate"],
)
def test_it_stays_a_screen(name: str) -> None:
    hostile = hostile_program(name)
    for width in (120, 100, 80):
        check_size(program_screen(hostile, width=width, lines=39), width, 39)
        check_size(profile_screen(hostile.whole, width=width), width)


@pytest.mark.slow
def test_ten_thousand_modules() -> None:
    groups = [f"Net.{letter}{n}" for letter in "abcdefghij" for n in range(10)]
    names = {f"{group}.{n}": "Linear" for group in groups for n in range(100)}
    cells: dict[Any, Totals] = {
        (f"Net > {name}", "forward"): ms(1, calls=2) for name in names
    }
    profile = hand_built(cells, {"Net": "Net", **names})
    screen = profile_screen(profile)
    check_size(screen)
    assert "100 Linear" in screen


def test_tips_that_have_no_room_are_counted() -> None:
    kinds = ("Adam", "AdamW")
    optimizers = tuple(OptimizerFacts(kind, 9, True, False, "cpu") for kind in kinds)
    cells: dict[Any, Totals] = {("Net", "forward"): ms(10, calls=2)}
    cells |= {(f"(optimizer) {kind}", "optimizer"): ms(9) for kind in kinds}
    names = {f"(optimizer) {kind}": ModuleInfo(kind="optimizer") for kind in kinds}
    loop = hand_built(cells, {"Net": "Net", **names})
    strata = Strata(functions=Stratum(loop, 2, loop.wall_ns))
    facts = ProgramFacts(optimizers, detects_anomalies=True)
    many = ProgramProfile("x", strata, 10**9, facts=facts)
    lines = program_screen(many, width=80).splitlines()
    assert sum(line.startswith("Tip: ") for line in lines) == 2
    assert "     (1 more tip: --full, --html FILE)" in lines


def test_modules_have_room_whatever_else_is_told() -> None:
    rows = tuple(IdleRow(f"Net.{n}", "forward", (9 - n) * MS) for n in range(8))
    idle = DeviceIdle(5, 100 * MS, (DeviceUse("cuda:0", 20 * MS, rows),))
    full = replace(hostile_program(""), device_idle=idle)
    screen = program_screen(full)

    check_size(screen)
    lines = screen.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("module "))
    assert lines[start:].index("") >= 1 + 6
    assert sum(line.startswith("Tip: ") for line in lines) == 1
    assert any("cuda:0: busy 20.0 %" in line for line in lines)


# Where it is printed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")


@pytest.mark.usefixtures("colours")
def test_colours_on_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(stream: io.StringIO) -> str:
        FUNCTIONS.print_report(file=stream)
        return stream.getvalue()

    plain, painted = printed(io.StringIO()), printed(Terminal())
    assert plain == FUNCTIONS.report() + "\n"
    assert "\x1b" not in plain
    assert "\x1b[1;33mHottest module: " in painted
    assert painted.count("\x1b[0m") == painted.count("\x1b[") / 2
    for code in ("1", "1;33", "34", "31", "2", "0"):
        painted = painted.replace(f"\x1b[{code}m", "")
    assert painted == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(Terminal()) == plain
    monkeypatch.setenv("NO_COLOR", "")  # as if it were not there
    assert "\x1b" in printed(Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert printed(Terminal()) == plain


@pytest.mark.usefixtures("colours")
def test_what_a_stream_can_show() -> None:
    closed = Terminal()
    closed.close()
    for stream, is_terminal in (
        (Terminal(), True),
        (io.StringIO(), False),
        (None, False),
    ):
        assert takes_colour(stream) is is_terminal
        assert width_of(stream) == (90 if is_terminal else 120)


def test_tables_come_below_it() -> None:
    screen, tables = STEP.report(), STEP.report(unit="auto", max_rows=40)
    assert STEP.report(full=True) == screen + "\n\n" + tables.partition("\n\n")[2]
    assert Profile().report(full=True) == Profile().report()


def test_steps_of_a_budget() -> None:
    times = StepTimes(1, 65 * MS)
    profile = replace(RL, unmeasured_steps=90, unmeasured_ns=1800 * MS)
    lines = profile_screen(replace(profile, step_times=times)).splitlines()
    assert lines[:2] == [
        "torchprof_hooks: Policy, 200.00ms of 2.00sec measured (10.0 %)",
        "10 of 100 steps of 65.00ms",
    ]


# What is not known, or not in the tables


def test_what_was_not_looked_into_is_not_outside_of_modules() -> None:
    known = program()
    unseen = Profile(
        {(("(outside modules)",), "outside"): Totals(self_ns=900 * MS)},
        {"(outside modules)": ModuleInfo(kind="outside")},
        900 * MS,
    )
    strata = replace(known.strata, counted=Stratum(unseen))
    screen = program_screen(replace(known, strata=strata))
    assert re.search(r"not looked into +.* 900.00ms  90.0  #", screen)
    assert "Forward or backward: neither; not looked into, 90.0 %" in screen
    assert "measuring itself" not in screen


def test_traced_steps_are_in_the_title() -> None:
    """Else start-up and loop do not add up to the time measured."""
    known = program()
    traced = replace(known.strata.functions.profile, step_times=StepTimes())
    strata = replace(known.strata, disturbed=Stratum(traced, 1, 100 * MS))
    title = program_screen(replace(known, strata=strata)).splitlines()[0]
    assert "1.20sec wall: 1.00sec start-up with the first step, " in title
    assert title.endswith("then 100.00ms, and 100.00ms in traced steps")


def test_the_start_is_without_what_measuring_took() -> None:
    known = program()
    start = known.strata.warm_up.profile
    cells = {
        key: replace(totals, overhead_ns=totals.self_ns // 2)
        for key, totals in start.cells.items()
    }
    first = known.strata.warm_up._replace(profile=replace(start, cells=cells))
    screen = program_screen(replace(known, strata=replace(known.strata, warm_up=first)))
    assert re.search(r"measuring itself +500.00ms", screen)


def test_evaluations_are_turns_of_tips_too() -> None:
    """Functions called in evaluations are not those of training steps."""
    many = hand_built(
        {
            ("Net", "forward"): ms(50, calls=1000),
            ("Net > add(4)", "forward"): ms(50, calls=10_000),
        },
        {"Net": "Net"},
    )
    times = StepTimes(later=(Bucket(1500, 10, 10 * MS),), evaluations=990)
    assert "Tip" not in profile_screen(replace(many, steps=10, step_times=times))
    assert "About 1000 functions per step" in profile_screen(replace(many, steps=10))
