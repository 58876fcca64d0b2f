from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers import FUNCTIONS, NOT_MODULES, STEP, hand_built, own, table
from torchprof_hooks import Profile
from torchprof_hooks.profiles.memory import MemorySummary, MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.reports.text import render

MS = 10**6

# 195 ms: Net 4, relu 6, loss 5 + 7, SGD 10, 15 outside; two layers, each 1 and
# linear 20 + 53.
TRAINED = hand_built(
    {
        ("Net", "forward"): own(4 * MS, 10),
        ("Net > relu(8x4)", "forward"): own(6 * MS, 20),
        ("Net > Net.fc.0", "forward"): own(1 * MS, 10),
        ("Net > Net.fc.0 > linear(8x4, 4x4, 4)", "forward"): own(20 * MS, 10),
        ("Net > Net.fc.0 > linear(8x4, 4x4, 4)", "backward"): own(53 * MS, 10),
        ("Net > Net.fc.1", "forward"): own(1 * MS, 10),
        ("Net > Net.fc.1 > linear(8x4, 4x4, 4)", "forward"): own(20 * MS, 10),
        ("Net > Net.fc.1 > linear(8x4, 4x4, 4)", "backward"): own(53 * MS, 10),
        ("cross_entropy(8x4, 8)", "forward"): own(5 * MS, 10),
        ("cross_entropy(8x4, 8)", "backward"): own(7 * MS, 10),
        ("(optimizer) SGD", "optimizer"): own(10 * MS, 10),
        ("(outside modules)", "outside"): own(15 * MS, 0),
    },
    {"Net": "Net", "Net.fc.0": "Linear", "Net.fc.1": "Linear", **NOT_MODULES},
)


def sections(
    profile: Profile, width: int = 120, max_rows: int | None = None
) -> list[str]:
    """The parts of the report below its first lines."""
    return render(profile, width=width, max_rows=max_rows).split("\n\n")[1:]


def test_a_whole_report() -> None:
    # 92.3 %: 195 without the 15 outside. In the tree of modules the loss is outside:
    # 15 + 5 and, in backward, 7. Modules: Net 4, fc twice 1. The two layers are one.
    assert render(TRAINED) == table("""
torchprof_hooks: 195.00ms wall, 92.3 % in modules, functions, optimizers, measuring \
took about 0.0 %

module                      calls  forward     self  backward     total     %
-----------------------------------------------------------------------------
Net                            10  52.00ms  10.00ms  106.00ms  158.00ms  81.0
  fc.0: Linear                 10  21.00ms            53.00ms   74.00ms  37.9
  fc.1: Linear                 10  21.00ms            53.00ms   74.00ms  37.9
(outside modules)                                               20.00ms  10.3
(optimizer) SGD                10                               10.00ms   5.1
(backward outside modules)                             7.00ms    7.00ms   3.6

functions: own time, without the calls that they make
function                      calls  forward  backward     total     %
----------------------------------------------------------------------
linear                           20  40.00ms  106.00ms  146.00ms  74.9
cross_entropy                    10   5.00ms    7.00ms   12.00ms   6.2
relu                             20   6.00ms              6.00ms   3.1
(modules, outside functions)          6.00ms              6.00ms   3.1

call sites: own time of functions, by module (*: layers of a kind) and shapes
call site                      calls  forward  backward     total     %
-----------------------------------------------------------------------
Net.fc.*: linear(8x4, 4x4, 4)     20  40.00ms  106.00ms  146.00ms  74.9
cross_entropy(8x4, 8)             10   5.00ms    7.00ms   12.00ms   6.2
Net: relu(8x4)                    20   6.00ms              6.00ms   3.1
""")


def test_functions_may_call_modules_and_each_other() -> None:
    # Own times, without the calls inside: CheckpointFunction 4 + 16, tanh 5 + 15.
    _, functions, call_sites = sections(FUNCTIONS)

    assert functions == table("""
functions: own time, without the calls that they make
function                      calls  forward  backward  recompute     total     %
---------------------------------------------------------------------------------
linear                            4  31.00ns   57.00ns    12.00ns  100.00ns  36.6
dropout                           2   9.00ns              14.00ns   23.00ns   8.4
CheckpointFunction                2   4.00ns   16.00ns              20.00ns   7.3
tanh                              2   5.00ns              15.00ns   20.00ns   7.3
add_                              4                                 18.00ns   6.6
cross_entropy                     2   7.00ns    8.00ns              15.00ns   5.5
mul                               6   6.00ns                         6.00ns   2.2
relu                              4   3.00ns                         3.00ns   1.1
(modules, outside functions)         13.00ns    1.00ns     2.00ns   16.00ns   5.9
""")
    assert call_sites == table("""
call sites: own time of functions, by module (*: layers of a kind) and shapes
call site                     calls  forward  backward  recompute    total     %
--------------------------------------------------------------------------------
Net.fc: linear(8x4, 4x4)          2  20.00ns   35.00ns             55.00ns  20.1
Net.block: linear(8x4, 4x4)       2  11.00ns   22.00ns    12.00ns  45.00ns  16.5
dropout(8x4)                      2   9.00ns              14.00ns  23.00ns   8.4
Net: CheckpointFunction(8x4)      2   4.00ns   16.00ns             20.00ns   7.3
Net: tanh(8x4)                    2   5.00ns              15.00ns  20.00ns   7.3
add_(4x4)                         4                                18.00ns   6.6
cross_entropy(8x4, 8)             2   7.00ns    8.00ns             15.00ns   5.5
Net: mul(8x4, 8x4)                6   6.00ns                        6.00ns   2.2
Net: relu(8x4)                    4   3.00ns                        3.00ns   1.1
""")


def test_without_functions_there_are_no_tables_of_them() -> None:
    assert len(sections(STEP)) == 1


def test_used_and_peak_are_shown_if_memory_was_measured() -> None:
    # One forward of linear is handed 20 KB / 10 calls; its backward rises higher.
    forward = MemoryTotals(20 * 1024, 0, 20 * 1024, 2048)
    backward = MemoryTotals(99 * 1024, 0, 0, 3072)
    profile = hand_built(
        {
            ("Net", "forward"): own(4, 10),
            ("Net > linear(8x4)", "forward"): own(20, 10, memory=forward),
            ("Net > linear(8x4)", "backward"): own(70, 10, memory=backward),
            ("Net > relu(8x4)", "forward"): own(6, 10),
        },
        {"Net": "Net"},
        memory=MemorySummary("cuda:0"),
    )
    _, functions, call_sites, _ = sections(profile)
    _, on_cpu, *_ = sections(replace(profile, memory=MemorySummary("cpu", is_net=True)))

    assert on_cpu.splitlines()[:2] == [
        "functions: own time, without the calls that they make; used: own bytes per "
        "forward call; peak: highest rise in a call,",
        "  at least: read where calls begin and end",
    ]
    assert functions == table("""
functions: own time, without the calls that they make; used: own bytes per forward \
call; peak: highest rise in a call
function                      calls  forward  backward    total     %    used    peak
-------------------------------------------------------------------------------------
linear                           10  20.00ns   70.00ns  90.00ns  90.0  2.00KB  3.00KB
relu                             10   6.00ns             6.00ns   6.0
(modules, outside functions)          4.00ns             4.00ns   4.0
""")
    assert call_sites == table("""
call sites: own time of functions, by module (*: layers of a kind) and shapes
call site         calls  forward  backward    total     %    used    peak
-------------------------------------------------------------------------
Net: linear(8x4)     10  20.00ns   70.00ns  90.00ns  90.0  2.00KB  3.00KB
Net: relu(8x4)       10   6.00ns             6.00ns   6.0
""")


def test_device_times_have_a_column() -> None:
    profile = hand_built(
        {
            ("f()", "forward"): own(4, device_ns=20),
            ("f()", "backward"): own(6, device_ns=30),
        },
        {},
    )

    assert sections(profile)[1] == table("""
functions: own time, without the calls that they make
function  calls  forward  backward   device    total      %
-----------------------------------------------------------
f             1   4.00ns    6.00ns  50.00ns  10.00ns  100.0
""")


def test_compiled_functions_have_a_mark() -> None:
    profile = hand_built(
        {("Net > step()", "forward"): own(4)},
        {"Net": "Net", "step()": ModuleInfo("step", "function", compiled=True)},
    )
    _, functions, call_sites = sections(profile)

    assert functions.splitlines()[3].startswith("step [compiled]  ")
    assert call_sites.splitlines()[3].startswith("Net: step() [compiled]  ")


def many(functions: int) -> Profile:
    """Functions that take 100, 99, ... ns."""
    return hand_built(
        {(f"f{n:02}()", "forward"): own(100 - n) for n in range(functions)}, {}
    )


def test_twenty_functions_and_ten_call_sites_are_shown() -> None:
    # 25 functions: 100 + ... + 76 = 2200 ns. Hidden: 80 + ... + 76 = 390, and, of the
    # call sites, 90 + ... + 76 = 1245.
    _, functions, call_sites = sections(many(25))

    assert len(functions.splitlines()) == 3 + 20 + 1
    assert functions.endswith("\n... 5 more functions, 17.7 %")
    assert len(call_sites.splitlines()) == 3 + 10 + 1
    assert call_sites.endswith("\n... 15 more call sites, 56.6 %")


def test_fewer_can_be_asked_for() -> None:
    _, functions, call_sites = sections(TRAINED, max_rows=2)

    assert [line.split()[0] for line in functions.splitlines()[3:]] == [
        "linear",
        "cross_entropy",
        "(modules,",
        "...",
    ]
    assert functions.endswith("\n... 1 more function, 3.1 %")
    assert call_sites.endswith("\n... 1 more call site, 3.1 %")


def test_layers_of_one_kind_are_one_call_site_if_their_inputs_are_alike() -> None:
    cells: dict[tuple[str, Phase], Totals] = {}
    for layer, width in enumerate((4, 4, 8)):
        cells[f"Net.{layer}.fc > linear({width})", "forward"] = own(10)
    cells["Net.0.fc > linear(5)", "forward"] = own(1)
    profile = hand_built(
        cells, {f"Net.{layer}.fc": ModuleInfo("Linear") for layer in range(3)}
    )

    assert sections(profile)[2] == table("""
call sites: own time of functions, by module (*: layers of a kind) and shapes
call site            calls  forward    total     %
--------------------------------------------------
Net.*.fc: linear(4)      2  20.00ns  20.00ns  64.5
Net.2.fc: linear(8)      1  10.00ns  10.00ns  32.3
Net.0.fc: linear(5)      1   1.00ns   1.00ns   3.2
""")


COLUMNS = [
    *["calls", "forward", "backward", "recompute", "total", "%"],
    *["used", "peak"],
]

LONG = hand_built(
    {
        (f"Net.{'a' * 30} > linear({'8x' * 30})", phase): own(
            10 * MS, memory=MemoryTotals(1, 1, 1, 1)
        )
        for phase in ("forward", "backward", "recompute")
    },
    {f"Net.{'a' * 30}": "Linear"},
    memory=MemorySummary("cuda:0"),
)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (60, ["calls", "total", "%"]),
        (80, ["calls", "forward", "backward", "total", "%"]),
        (100, ["calls", "forward", "backward", "recompute", "total", "%", "peak"]),
        (120, COLUMNS),
    ],
)
def test_columns_for_which_there_is_no_room_are_named(
    width: int, expected: list[str]
) -> None:
    title, _, table = sections(LONG, width=width)[2].partition("\ncall site ")
    *_, missing = " ".join(title.split()).partition("; no room for ")
    shown = table.partition("\n")[0].split()

    assert shown == expected
    assert missing.split(", ") == ([h for h in COLUMNS if h not in shown] or [""])


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("profile", [TRAINED, FUNCTIONS, LONG], ids=["a", "b", "c"])
def test_tables_of_functions_keep_their_width(width: int, profile: Profile) -> None:
    lines = "\n".join(sections(profile, width=width)[1:3]).splitlines()

    assert max(map(len, lines)) <= width
