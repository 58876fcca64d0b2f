from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.helpers import body, hand_built, own, table
from torchprof_hooks import Profile
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import MODULE_PHASES, Phase
from torchprof_hooks.profiles.step_times import Bucket, StepTimes
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.reports.text import render

MS = 10**6

# 200 ms: Net 1 + 2, fc 50 + 100.25, head 0.75 + 6 and 30 + 10 outside modules.
TRAINED = hand_built(
    {
        ("Net", "forward"): own(1 * MS, calls=10),
        ("Net > Net.fc", "forward"): own(50 * MS, calls=10),
        ("Net > Net.head", "forward"): own(750_000, calls=10),
        ("Net", "backward"): own(2 * MS, calls=10),
        ("Net > Net.fc", "backward"): own(100_250_000, calls=10),
        ("Net > Net.head", "backward"): own(6 * MS, calls=10),
        ("(optimizer) SGD", "optimizer"): own(10 * MS, calls=10),
        ("(outside modules)", "outside"): own(30 * MS, calls=0),
    },
    {
        "Net": "Net",
        "Net.fc": "Linear",
        "Net.head": "Block",
        "(optimizer) SGD": ModuleInfo(kind="optimizer"),
        "(outside modules)": ModuleInfo(kind="outside"),
    },
    steps=10,
    overhead_ns=5 * MS,
)


def test_a_whole_report() -> None:
    # 85 %: 200 without the 30 outside; Net: 1 + 50 + 0.75 and 2 + 100.25 + 6. The
    # largest value, 160 ms, is at least 1 in ms. A leaf's own time is all it has.
    assert render(TRAINED) == table("""
torchprof_hooks: 200.00ms wall, 10 steps of 20.00ms, 85.0 % in modules and optimizers, \
measuring took about 2.5 %

module             calls  forward    self  backward    self     total     %
---------------------------------------------------------------------------
Net                   10  51.75ms  1.00ms  108.25ms  2.00ms  160.00ms  80.0
  fc: Linear          10  50.00ms          100.25ms          150.25ms  75.1
  head: Block         10   0.75ms            6.00ms            6.75ms   3.4
(outside modules)                                             30.00ms  15.0
(optimizer) SGD       10                                      10.00ms   5.0
""")


def test_durations_of_steps() -> None:
    times = StepTimes(1, 65 * MS, (Bucket(1, 8, 80 * MS), Bucket(2, 1, 55 * MS)))

    def line(**changes: Any) -> str:
        profile = replace(TRAINED, step_times=times._replace(**changes))
        return render(profile, width=300).splitlines()[0]

    assert line().startswith(
        "torchprof_hooks: 200.00ms wall, 10 steps: first 65.00ms, then 15.00ms (median "
        "10.00ms, 90 % within 55.00ms), 85.0 % in"
    )
    assert ", 10 steps of 65.00ms, 85.0 % in" in line(later=())
    assert "90 % within 55.00ms), 85.0 % in" in line(first_steps=0, first_ns=0)
    evaluated = line(evaluations=4, evaluation_ns=8 * MS)
    assert "55.00ms), 4 evaluation calls of 2.00ms, 85.0 % in" in evaluated
    evaluated = line(evaluations=1, evaluation_ns=8 * MS)
    assert ", 1 evaluation call of 8.00ms, " in evaluated


def test_durations_of_evaluation_calls_with_which_a_run_begins() -> None:
    def line(evaluations: int) -> str:
        took_ns = (3000 + 2 * (evaluations - 1)) * MS
        times = StepTimes(
            evaluations=evaluations,
            evaluation_ns=took_ns,
            first_evaluations=1,
            first_evaluation_ns=3000 * MS,
        )
        return render(replace(TRAINED, step_times=times), width=300).splitlines()[0]

    assert ", 4 evaluation calls: first 3.00sec, then 2.00ms, " in line(4)
    assert ", 1 evaluation call of 3.00sec with the start-up, " in line(1)


def test_some_steps_alone_were_measured() -> None:
    profile = replace(TRAINED, unmeasured_steps=90, unmeasured_ns=1800 * MS)
    assert render(profile).splitlines()[:2] == [
        "torchprof_hooks: 200.00ms of 2.00sec measured (10.0 %), 10 of 100 steps of "
        "20.00ms, 85.0 % in modules and optimizers,",
        "  measuring took about 0.2 % of all",
    ]
    assert render(profile).partition("\n\n")[2] == body(TRAINED, "auto")


def test_some_calls_without_steps_were_measured() -> None:
    profile = replace(TRAINED, steps=0, unmeasured_ns=1800 * MS)
    assert render(profile, width=200).splitlines()[0] == (
        "torchprof_hooks: 200.00ms of 2.00sec measured (10.0 %), 85.0 % in modules and "
        "optimizers, measuring took about 0.2 % of all"
    )


def test_a_unit_for_each_cell() -> None:
    assert body(TRAINED, "auto_foreach") == table("""
module             calls   forward    self  backward    self     total     %
----------------------------------------------------------------------------
Net                   10   51.75ms  1.00ms  108.25ms  2.00ms  160.00ms  80.0
  fc: Linear          10   50.00ms          100.25ms          150.25ms  75.1
  head: Block         10  750.00us            6.00ms            6.75ms   3.4
(outside modules)                                              30.00ms  15.0
(optimizer) SGD       10                                       10.00ms   5.0
""")


def test_waiting_for_data_is_a_line() -> None:
    profile = hand_built(
        {
            ("Net", "forward"): own(30 * MS, calls=10),
            ("(data loading)", "data"): own(60 * MS, calls=10),
            ("(outside modules)", "outside"): own(10 * MS, calls=0),
        },
        {
            "Net": "Net",
            "(data loading)": ModuleInfo(kind="data"),
            "(outside modules)": ModuleInfo(kind="outside"),
        },
    )

    assert body(profile) == table("""
module             calls  forward    total     %
------------------------------------------------
Net                   10  30.00ms  30.00ms  30.0
(data loading)        10           60.00ms  60.0
(outside modules)                  10.00ms  10.0
""")


@pytest.mark.parametrize(
    ("unit", "line"),
    [
        (
            "sec",
            "Net                   10  0.05sec  0.00sec   0.11sec  0.00sec  0.16sec",
        ),
        ("us", "Net                   10  51750.00us  1000.00us  108250.00us"),
        ("ns", "Net                   10  51750000.00ns  1000000.00ns"),
    ],
)
def test_a_unit_by_name(unit: str, line: str) -> None:
    assert render(TRAINED, unit).splitlines()[4].startswith(line)


@pytest.mark.parametrize("profile", [TRAINED, Profile()])
def test_an_unknown_unit_is_refused(profile: Profile) -> None:
    with pytest.raises(ValueError, match=r"unit must be 'auto', .* not 'min'"):
        render(profile, "min")


def test_columns_that_would_be_empty_are_left_out() -> None:
    assert render(
        hand_built({("Net", "forward"): own(4 * MS)}, {"Net": "Net"})
    ) == table("""
torchprof_hooks: 4.00ms wall, 100.0 % in modules and optimizers, measuring took about \
0.0 %

module  calls  forward   total      %
-------------------------------------
Net         1   4.00ms  4.00ms  100.0
""")


def test_recompute_and_device_have_columns_of_their_own() -> None:
    # Device: Net 2 + 12 + 6 (block in two phases) = 20 ms; host 10 + 30 + 20 = 60.
    profile = hand_built(
        {
            ("Net", "forward"): own(10 * MS, device_ns=2 * MS),
            ("Net > Net.block", "forward"): own(30 * MS, device_ns=12 * MS),
            ("Net > Net.block", "recompute"): own(20 * MS, device_ns=6 * MS),
        },
        {"Net": "Net", "Net.block": "Block"},
        devices=("cuda",),
    )

    assert body(profile) == table("""
module          calls  forward     self  recompute   device    total      %
---------------------------------------------------------------------------
Net                 1  40.00ms  10.00ms    20.00ms  20.00ms  60.00ms  100.0
  block: Block      1  30.00ms             20.00ms  18.00ms  50.00ms   83.3
""")


def test_what_has_no_room_is_summed_up_in_the_last_line() -> None:
    # Net and 76 children; 40 rows are shown, of 37 children only the sum: 1.2 % of
    # 10 000 ns is 120; 36 of them take 3 ns each, one 12. The rest: 39 of 250, Net 130.
    children = [250] * 39 + [12] + [3] * 36
    names = [f"Net.part{n:02}" for n in range(len(children))]
    profile = hand_built(
        {
            ("Net", "forward"): own(130),
            **{
                (f"Net > {name}", "forward"): own(self_ns)
                for name, self_ns in zip(names, children, strict=True)
            },
        },
        {"Net": "Net", **dict.fromkeys(names, "Leaf")},
    )

    lines = render(profile).splitlines()

    assert profile.wall_ns == 10_000
    assert len(lines) == 2 + 2 + 40 + 1
    assert lines[-2].startswith("  part38: Leaf")
    assert lines[-1] == "... 37 more rows, 1.2 %"


def test_fewer_rows_can_be_asked_for() -> None:
    # fc, though inside Net, comes before what is outside; 6.75 + 30 + 10 of 200 hidden
    assert render(TRAINED, max_rows=2).splitlines()[4:] == [
        "Net              10  51.75ms  1.00ms  108.25ms  2.00ms  160.00ms  80.0",
        "  fc: Linear     10  50.00ms          100.25ms          150.25ms  75.1",
        "... 3 more rows, 23.4 %",
    ]


def test_layers_of_one_kind_are_shown_all_or_not_at_all() -> None:
    # Three blocks with a norm each. The norms differ by chance; with room for two more
    # rows, none of the three is shown.
    cells: dict[tuple[str, Phase], Totals] = {("Net", "forward"): own(1)}
    modules: dict[str, str] = {"Net": "Net"}
    for block, norm_ns in enumerate((7, 9, 8)):
        name = f"Net.blocks.{block}"
        cells[f"Net > {name}", "forward"] = own(50)
        cells[f"Net > {name} > {name}.norm", "forward"] = own(norm_ns)
        modules |= {name: "Block", f"{name}.norm": "LayerNorm"}
    profile = hand_built(cells, modules)

    def labels(max_rows: int) -> list[str]:
        lines = render(profile, max_rows=max_rows).splitlines()[4:]
        return [line.split()[0] for line in lines]

    blocks = ["Net", "blocks.0:", "blocks.1:", "blocks.2:"]
    assert labels(6) == [*blocks, "..."]
    assert labels(7).count("norm:") == 3
    assert labels(2) == ["Net", "..."]


def test_exactly_one_row_more_is_a_row() -> None:
    assert render(TRAINED, max_rows=4).endswith("\n... 1 more row, 3.4 %")
    assert "more row" not in render(TRAINED, max_rows=5)


def deep_and_long(self_ns: int) -> Profile:
    """All columns, and names longer than the table may be wide."""
    root, leaf = "Net", f"Net.{'x' * 150}"
    return hand_built(
        {
            (path, phase): own(self_ns, device_ns=self_ns)
            for path in (root, f"{root} > {leaf}")
            for phase in MODULE_PHASES
        },
        {root: "Net", leaf: "L" * 150},
        steps=1,
    )


@pytest.mark.parametrize("width", [120, 130, 200])
def test_a_long_name_is_cut_so_that_the_table_keeps_its_width(width: int) -> None:
    lines = render(deep_and_long(MS), width=width).splitlines()[2:]

    assert max(map(len, lines)) == width
    assert lines[-1].startswith("  xxx")
    assert "x...  " in lines[-1]


# The last are times as in a long training: 6 * 50 s and 6 * 500 s.
@pytest.mark.parametrize("self_ns", [1, 10**3, 10**9, 50 * 10**9, 500 * 10**9])
def test_a_table_is_not_wider_than_120(self_ns: int) -> None:
    lines = render(deep_and_long(self_ns)).splitlines()[2:]

    assert max(map(len, lines)) <= 120


def test_short_names_do_not_widen_the_table() -> None:
    assert render(TRAINED, width=1000) == render(TRAINED)


@pytest.mark.parametrize(
    ("aborted_calls", "expected"),
    [
        (1, ", 1 call ended by an exception"),
        (3, ", 3 calls ended by an exception"),
        (0, "about 0.0 %"),
    ],
)
def test_calls_that_raised_are_in_the_first_line(
    aborted_calls: int, expected: str
) -> None:
    profile = hand_built(
        {("Net", "forward"): own(5)}, {"Net": "Net"}, aborted_calls=aborted_calls
    )

    header = " ".join(render(profile).partition("\n\n")[0].split())  # may be two lines
    assert header.endswith(expected)


def test_one_step() -> None:
    profile = hand_built({("Net", "forward"): own(5)}, {"Net": "Net"}, steps=1)

    assert render(profile).startswith("torchprof_hooks: 5.00ns wall, 1 step of 5.00ns,")


def test_a_profile_without_modules_says_so() -> None:
    outside = hand_built(
        {("(outside modules)", "outside"): own(3 * MS, calls=0)},
        {"(outside modules)": ModuleInfo(kind="outside")},
    )

    assert render(outside) == table("""
torchprof_hooks: 3.00ms wall, 0.0 % in modules and optimizers, measuring took about \
0.0 %

No module was called: there is nothing to report.
profile() measures the thread that enters it: other threads need one of their own.
""")
    assert render(Profile()).endswith(
        "No module was called: there is nothing to report.\n"
        "profile() measures the thread that enters it: other threads need one of "
        "their own."
    )


def test_with_a_shared_module_the_calls_around_it_are_shown() -> None:
    """The dear one of its two places is not where the last of the others is."""
    profile = hand_built(
        {
            ("Net > Net.shared", "forward"): own(100),
            ("Net > Net.a", "forward"): own(50),
            ("Net > Net.z > Net.y > Net.x > Net.shared", "forward"): own(1),
        },
        {
            "Net": "Net",
            "Net.shared": "Linear",
            "Net.a": "Linear",
            "Net.z": "Block",
            "Net.y": "Block",
            "Net.x": "Block",
        },
    )
    for max_rows in range(1, 8):
        render(profile, max_rows=max_rows)
    for line in ("z: Block", "y: Block", "x: Block", "shared: Linear"):
        assert f"  {line}" in render(profile, max_rows=6).replace("Net.", "")
