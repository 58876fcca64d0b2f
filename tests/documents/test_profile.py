"""What the report of a profile says: answers, phases, layers, tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tests.documents.made import MS, after, made, ms
from torchprof_hooks.documents.build import facts, screen
from torchprof_hooks.documents.build.folded import folded_modules
from torchprof_hooks.documents.build.full import communication, full_tables
from torchprof_hooks.documents.build.tables import call_sites, grouped_table
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.documents.document import Answer, Block, Document, Facts, Table
from torchprof_hooks.documents.render.table import chosen_rows
from torchprof_hooks.documents.render.text import text_of
from torchprof_hooks.documents.report import Layout, report
from torchprof_hooks.documents.words import PHASE_TITLES, phase_times_ns
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.collectives import Collective
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.memory import MemorySummary, MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import (
    GROUPINGS,
    Grouping,
    OtherPhase,
    Phase,
    SortBy,
)
from torchprof_hooks.profiles.peak import Peak
from torchprof_hooks.profiles.program import MeasuredSteps, Program
from torchprof_hooks.profiles.provenance import Provenance
from torchprof_hooks.profiles.step_times import Bucket, StepTimes
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.profiles.trace.device_idle import DeviceIdle, DeviceUse, IdleRow

KB, MB = 1024, 1024**2

NAMES: dict[str, ModuleInfo | str] = {
    "LM": ModuleInfo("LM", place="called first at train.py:31"),
    **{f"LM.blocks.{n}": "Block" for n in range(4)},
    **{f"LM.blocks.{n}.mlp": "Linear" for n in range(4)},
    **{f"LM.blocks.{n}.norm": "LayerNorm" for n in range(4)},
    "loss(8)": ModuleInfo("loss", "function", place="called first at train.py:32"),
}


def language_model(calls: int, outside_ms: float, **facts: Any) -> Profile:
    """Forward 2 + 4 * (1 + 5 + 0.5) = 28 ms, 3 in the loss, backward 40, the optimizer
    8."""
    cells: dict[tuple[str, Phase], Totals] = {("LM", "forward"): ms(2, calls)}
    for n in range(4):
        block = f"LM.blocks.{n}"
        path = f"LM > {block}"
        mlp = f"{path} > {block}.mlp"
        cells[path, "forward"] = ms(1, calls)
        cells[mlp, "forward"] = ms(0, calls)
        cells[f"{mlp} > linear(8x4, 4x4)", "forward"] = ms(5, calls)
        cells[f"{mlp} > linear(8x4, 4x4)", "backward"] = ms(10)
        cells[f"{path} > {block}.norm", "forward"] = ms(0.5, calls)
    cells["loss(8)", "forward"] = ms(3, calls)
    cells["(optimizer) SGD", "optimizer"] = ms(8, calls)
    cells["(outside modules)", "outside"] = ms(outside_ms, 0)
    return made(cells, NAMES, **facts)


START = language_model(
    1, 921, part="start-up", steps=1, step_times=StepTimes(1, 1000 * MS)
)
LOOP = language_model(
    4,
    21,
    steps=4,
    step_times=StepTimes(
        later=(Bucket(1, 3, 60 * MS), Bucket(2, 1, 40 * MS)),
        evaluations=2,
        evaluation_ns=6 * MS,
    ),
    overhead_ns=3 * MS,
)
RUN = after(START, LOOP)


def document_of(profile: ProfileData) -> Document:
    return screen.screen_document(view_of(profile), "more")


def table(blocks: Sequence[Block], name: str) -> Table:
    (found,) = [b for b in blocks if isinstance(b, Table) and b.name == name]
    return found


def facts_of(profile: ProfileData, name: str) -> Facts:
    blocks = document_of(profile).blocks
    (found,) = [b for b in blocks if isinstance(b, Facts) and b.name == name]
    return found


def values(found: Table, name: str) -> dict[str, Any]:
    (column,) = [c for c in found.columns if name in (c.name, c.title)]
    labels = found.names or found.labels
    return dict(zip(labels, column.values, strict=True))


def answers(profile: ProfileData) -> dict[str, Answer]:
    return {a.name: a for a in screen.answers(view_of(profile)).answers}


# The loop, with the start-up apart


def test_the_screen_is_about_the_loop() -> None:
    document = document_of(RUN)
    phases = table(document.blocks, "phases")
    assert values(phases, "self_ns") == {
        "backward": 40 * MS,
        "forward": 28 * MS,
        "outside": 24 * MS,
        "optimizer": 8 * MS,
    }
    assert values(phases, "start_up_ns")["outside"] == 924 * MS
    assert sum(values(phases, "share").values()) == pytest.approx(1)
    assert values(phases, "step_ns")["optimizer"] == 2 * MS
    layers = table(document.blocks, "layers")
    assert values(layers, "cumulative_ns") == {
        "LM": 68 * MS,
        "LM.blocks.*": 66 * MS,
        "LM.blocks.*.mlp": 60 * MS,
        "LM.blocks.*.norm": 2 * MS,
    }
    assert list(layers.depths) == [0, 1, 2, 2]
    assert list(layers.tones) == ["", "", "hot", ""]
    functions = table(document.blocks, "hot_functions")
    assert values(functions, "self_ns") == {"linear": 60 * MS, "loss": 3 * MS}
    lines = table(document.blocks, "lines")
    assert values(lines, "total") == {"train.py:31": 68 * MS, "train.py:32": 3 * MS}


def test_a_full_report_is_about_all_of_the_run() -> None:
    tables = list(full_tables(RUN, None))
    assert values(table(tables, "modules"), "cumulative_ns")["LM"] == 136 * MS
    assert values(table(tables, "functions"), "calls")["linear"] == 4 + 16


def test_the_answers() -> None:
    hot, most = answers(RUN).values()
    assert (hot.answer, hot.share) == ("LM.blocks.*.mlp", 0.6)
    assert hot.numbers["self_ns"] == 60 * MS
    assert hot.numbers["backward_self_ns"] == 40 * MS
    assert (most.answer, most.share) == ("backward", 0.4)
    assert most.numbers["forward_ns"] == 28 * MS


def test_a_phase_of_no_module_may_take_most() -> None:
    profile = made(
        {
            ("Net", "forward"): ms(10),
            ("Net", "backward"): ms(20),
            ("(data loading)", "data"): ms(60),
            ("(not measured)", "outside"): ms(5, 0),
            ("(outside modules)", "outside"): ms(5, 0),
        },
        {"Net": "Net"},
    )
    assert answers(profile)["most_time"].answer == "data loading"
    assert answers(profile)["most_time"].share == 0.6
    times = phase_times_ns(profile)
    assert times["unmeasured"] == times["outside"] == 5 * MS
    assert times.total() == profile.wall_ns
    assert [*times] == [phase for phase in PHASE_TITLES if phase in times]


def test_no_modules_or_no_time_have_no_answers() -> None:
    assert answers(Profile()) == {}
    functions = made({("relu(3)", "forward"): ms(4)}, {})
    assert [*answers(functions)] == ["most_time"]
    assert not table(document_of(functions).blocks, "layers").labels


def with_spread(calls: int, std_ms: float) -> Profile:
    """One module whose calls of 10 ms differ."""
    squares = calls * round((100 + std_ms**2) * MS**2)
    totals = Totals(
        calls, 10 * calls * MS, duration_ns=10 * calls * MS, squares_ns2=squares
    )
    return made({("Net", "forward"): totals}, {"Net": "Net"})


def test_the_uncertainty_of_a_share_is_its_standard_error() -> None:
    # 25 calls that differ by 2 ms: their sum of 250 ms by 5 * 2 ms.
    found = answers(with_spread(25, 2))["hottest_module"].uncertainty
    assert found == pytest.approx(10 / 250)
    assert answers(with_spread(1, 0))["hottest_module"].uncertainty is None
    assert answers(RUN)["hottest_module"].uncertainty is None
    # Where modules were measured in a quarter of the steps, it is twice as large.
    scaled = replace(with_spread(25, 2), measured=MeasuredSteps(100, 25))
    found = answers(scaled)["hottest_module"].uncertainty
    assert found == pytest.approx(20 / 250)


# Start-up


@pytest.mark.parametrize(
    ("run", "has_start_up"),
    [
        (RUN, True),
        (RUN.loop, False),
        (RUN.start_up, False),
        # Nothing is repeated after the first step.
        (after(START, made({("LM", "forward"): ms(1)}, NAMES)), False),
        (after(START, replace(LOOP, parts=(replace(LOOP.parts[0], cells={}),))), False),
    ],
)
def test_the_start_up_is_apart_where_there_is_a_loop(
    run: Profile, has_start_up: bool
) -> None:
    view = view_of(run)
    assert (view.start_up is not None) is has_start_up
    assert view.shown.wall_ns == (run.loop if has_start_up else run).wall_ns


def test_a_program_may_begin_with_evaluation_calls() -> None:
    times = StepTimes(evaluations=64, evaluation_ns=START.wall_ns)
    start = START.with_parts(lambda part: replace(part, steps=0, step_times=times))
    loop = LOOP.with_parts(
        lambda part: replace(part, steps=0, step_times=StepTimes(evaluations=2))
    )
    program = Program("a.py", 10**9)
    view = view_of(after(start, replace(loop, program=program)))
    assert view.start_up is not None
    assert view.end_of_start_up == "the first 64 evaluation calls"
    assert view.title == "a.py"
    assert view_of(after(start, loop)).start_up is None


def test_the_names_of_a_run() -> None:
    assert view_of(RUN).title == "LM"
    many = made(
        {(name, "forward"): ms(1) for name in "ABCD"}, dict.fromkeys("ABCD", "M")
    )
    assert view_of(many).title == "A, B, C, ..."
    one = replace(RUN, provenance=(Provenance(1, 4),))
    assert facts.title_of(view_of(one)) == "rank 1 of 4, LM"
    both = replace(RUN, provenance=(Provenance(1, 4), Provenance(2, 4)))
    assert facts.title_of(view_of(both)) == "LM"


def test_durations_of_steps() -> None:
    def text(**changes: Any) -> str:
        times = RUN.step_times._replace(**changes)
        part = replace(RUN.parts[0], steps=5, step_times=times)
        return ", ".join(facts.step_texts(replace(RUN, parts=(part,))))

    steps = "5 steps: first 1.00sec, then 25.00ms (median 20.00ms, 90 % within 40.00ms)"
    assert text() == f"{steps}, 2 evaluation calls of 3.00ms"
    assert text(evaluations=0) == steps
    assert text(evaluations=0, later=()) == "5 steps of 1.00sec"
    assert text(evaluations=0, first_steps=0).startswith("5 steps of 25.00ms (median")
    first = {"first_evaluations": 1, "first_evaluation_ns": 5 * MS}
    assert text(**first).endswith("2 evaluation calls: first 5.00ms, then 1.00ms")
    assert text(evaluations=1, **first).endswith(
        "1 evaluation call of 5.00ms with the start-up"
    )


def test_in_which_steps_was_measured() -> None:
    def text(run: Profile, *counts: int) -> str:
        found = replace(run, measured=MeasuredSteps(*counts))
        return "".join(facts.sample_texts(found))

    scaled = "what is inside of a part is scaled to all of its time"
    some = "modules were measured in 8 of 10 steps"
    both = some.replace("modules", "modules and functions", 1)
    training = with_spread(10, 1)
    assert text(RUN) == text(RUN, 10, 10) == ""
    assert text(training, 10, 8) == f"{some}: {scaled}"
    assert text(RUN, 10, 8) == f"{both} and evaluation calls: {scaled}"


def test_what_measuring_took() -> None:
    def text(program: Program | None = None, **times: Any) -> str:
        return facts.overhead_text(replace(LOOP, program=program, **times))

    assert LOOP.wall_ns == 100 * MS
    assert text(overhead_ns=3 * MS) == "about 3.0 %"
    compared = "(by comparison with steps that were not measured)"
    found = text(overhead_ns=2 * MS, overhead_error_ns=MS // 2)
    assert found == f"2.0 +/- 0.5 % {compared}"
    # A program takes longer than its rows do; before it has ended, that is not known.
    assert text(Program("a.py", 200 * MS), overhead_ns=3 * MS) == "about 1.5 %"
    assert text(Program("a.py"), overhead_ns=3 * MS) == "about 3.0 %"
    assert text(overhead_ns=101 * MS) == "about 100.0 %"
    assert facts.overhead_text(Profile(overhead_ns=1)) == "about 0.0 %"


# Layers


def shown(profile: ProfileData, most: int) -> list[str]:
    """The rows of the layers with room for so many, the hottest marked."""
    found = folded_modules(view_of(profile))
    return [
        "  " * found.depths[n] + found.names[n] + " *" * (found.tones[n] == "hot")
        for n in chosen_rows(found, most)
    ]


def modules(own_ms: dict[str, float]) -> Profile:
    cells: dict[tuple[str, Phase], Totals] = {
        (path, "forward"): ms(own) for path, own in own_ms.items()
    }
    names = {name for path in own_ms for name in path.split(" > ")}
    return made(cells, {name: f"C{name.rpartition('.')[2]}" for name in names})


def test_a_layer_with_a_number_is_not_around_others_with_numbers() -> None:
    """`Net.3` is of the kind `Net.*`, as are the blocks around the hottest layers."""
    found = modules(
        {
            "Net": 0,
            "Net > Net.0": 4,
            "Net > Net.0 > Net.0.a": 40,
            "Net > Net.0 > Net.0.b": 50,
            "Net > Net.3": 1.3,
        }
    )
    four = ["Net", "  Net.0", "    Net.0.b *", "    Net.0.a"]
    assert shown(found, 4) == four
    assert shown(found, 5) == [*four, "  Net.3"]


def test_the_hottest_layer_is_there_where_there_is_no_room_for_all_around() -> None:
    found = modules({"Net": 1, "Net > Net.a > Net.a.b > Net.a.b.c": 50})
    assert len(shown(found, 4)) == 4
    assert shown(found, 2)[-1].strip() == "Net.a.b.c *"
    assert shown(found, 1)[-1].strip() == "Net.a.b.c *"


def test_of_two_places_the_one_where_it_takes_most_is_shown() -> None:
    found = modules(
        {
            "Net > Net.a > Net.act": 20,
            "Net > Net.b > Net.act": 30,
            "Net > Net.b": 1,
            "Net > Net.a": 25,
        }
    )
    assert shown(found, 3) == ["Net", "  Net.b", "    Net.act *"]


def test_layers_of_other_classes_are_not_folded_together() -> None:
    """In a Sequential, modules of all classes have numbers for names."""
    cells: dict[tuple[str, Phase], Totals] = {}
    names = {"Net": "Net"}
    for stage, (place, kind) in product(range(3), enumerate(("Conv2d", "ReLU"))):
        name = f"Net.{stage}.{place}"
        cells[f"Net > {name}", "forward"] = ms(20 - 10 * place)
        names[name] = kind
    profile = made(cells, names)
    hot = answers(profile)["hottest_module"]
    assert (hot.answer, hot.numbers["class_name"]) == ("Net.*.*", "Conv2d")
    assert hot.numbers["modules"] == 3
    labels = folded_modules(view_of(profile)).labels
    assert labels == ["Net", "*.*: 3 Conv2d", "*.*: 3 ReLU"]


def test_the_hottest_layers_are_shown_however_many_others_take_more() -> None:
    own = {
        f"Net > Net.w{'x' * outer} > Net.w{'x' * outer}.v{'y' * inner}": 10.0
        for outer, inner in product(range(30), range(3))
    }
    found = modules({**own, "Net > Net.quiet > Net.quiet.hot": 11})
    rows = shown(found, 14)
    assert len(rows) == 14
    assert rows[rows.index("  Net.quiet") + 1] == "    Net.quiet.hot *"


def test_phases_that_people_look_for_are_never_together_with_others() -> None:
    """They are the shortest here."""
    kinds: list[OtherPhase] = ["waiting", "communication", "compiling", "garbage"]
    cells: dict[tuple[str, Phase], Totals] = {
        **{(f"({kind})", kind): ms(100 - n) for n, kind in enumerate(kinds)},
        ("Net", "forward"): ms(1),
        ("Net", "backward"): ms(2),
        ("Net", "recompute"): ms(2),
        ("(data loading)", "data"): ms(1),
        ("(optimizer) SGD", "optimizer"): ms(1),
        ("(outside modules)", "outside"): ms(50),
    }
    infos = {f"({kind})": ModuleInfo(kind=kind) for kind in kinds}
    profile = made(cells, {"Net": "Net", **infos})
    own = values(screen.phases(view_of(profile)), "self_ns")
    assert len(own) == 7
    assert {"forward", "backward", "recompute", "optimizer", "data"} < {*own}
    assert sum(own.values()) == profile.wall_ns
    assert list(own.values())[-1] == (99 + 98 + 97 + 50) * MS


# Devices


BUSY = made(
    {
        ("Net", "forward"): ms(2),
        ("Net > Net.large", "forward"): ms(1, 1, 30),
        ("Net > Net.large > linear(8x8, 8x8)", "forward"): ms(1, 1, 10),
        ("Net > Net.large", "backward"): ms(1, 1, 50),
        ("Net > Net.small", "forward"): ms(5, 1, 6),
        ("Net > Net.small > relu(8x8)", "forward"): ms(3, 1, 2),
        ("Net > Net.small", "backward"): ms(2, 1, 2),
        ("(outside modules)", "outside"): ms(85, 0),
    },
    {"Net": "Net", "Net.large": "Linear", "Net.small": "ReLU"},
    devices=("cuda",),
    device_asked=40,
    device_waits=4,
)


def test_a_device_that_is_always_busy_tells_what_is_hot() -> None:
    found = answers(BUSY)
    assert (found["hottest_module"].answer, found["hottest_module"].share) == (
        "Net.large",
        0.9,
    )
    assert found["hottest_module"].numbers["clock"] == "cuda"
    assert (found["most_time"].answer, found["most_time"].share) == ("backward", 0.52)
    assert shown(BUSY, 2)[-1] == "  Net.large *"
    assert table(document_of(BUSY).blocks, "hot_functions").labels == ["linear", "relu"]


@pytest.mark.parametrize(("asked", "waits"), [(40, 20), (19, 0), (0, 0)])
def test_a_device_that_waits_or_is_not_known(asked: int, waits: int) -> None:
    other = replace(BUSY, device_asked=asked, device_waits=waits)
    assert answers(other)["hottest_module"].answer == "Net.small"
    assert answers(other)["most_time"].numbers["clock"] == "host"


@pytest.mark.parametrize(
    ("asked", "waits", "is_said"), [(40, 31, True), (40, 29, False), (19, 19, False)]
)
def test_a_device_that_mostly_waits_for_the_host(
    asked: int, waits: int, is_said: bool
) -> None:
    other = replace(BUSY, device_asked=asked, device_waits=waits)
    assert bool(facts.device_text(other)) is is_said


IDLE = (
    IdleRow("Net.layers.0.mlp", "forward", 8 * MS),
    IdleRow("Net.layers.1.mlp", "forward", 7 * MS),
    IdleRow("Net.layers.0.mlp", "backward", 6 * MS),
    IdleRow("(data loading)", "data", 9 * MS),
)


def test_idle_time_of_a_device_by_layers_of_a_kind() -> None:
    idle = DeviceIdle(5, 100 * MS, (DeviceUse("cuda:0", 70 * MS, IDLE),))
    (found,) = screen.idle_blocks(idle)
    assert isinstance(found, Table)
    assert values(found, "idle_ns") == {
        "Net.layers.*.mlp, forward": 15 * MS,
        "(data loading)": 9 * MS,
        "Net.layers.*.mlp, backward": 6 * MS,
    }
    assert "busy 70.0 % of step 5 (100.00ms), idle 30.00ms" in found.title


@pytest.mark.parametrize(
    ("idle", "said"),
    [
        (DeviceIdle(5, 9, (DeviceUse("cuda:1", 9),)), "cuda:1: busy 100.0 % of step 5"),
        (DeviceIdle(4, 9), "no kernels of a device were recorded in step 4"),
        (DeviceIdle(reason="of another profiler"), "of another profiler"),
    ],
)
def test_no_idle_time_says_why(idle: DeviceIdle, said: str) -> None:
    (found,) = screen.idle_blocks(idle)
    assert isinstance(found, Facts)
    assert said in found.lines[0]


# Tables


TRAINED = made(
    {
        ("Net", "forward"): ms(4, 10),
        ("Net > relu(8x4)", "forward"): ms(6, 20),
        ("Net > Net.fc.0", "forward"): ms(1, 10),
        ("Net > Net.fc.0 > linear(8x4, 4x4, 4)", "forward"): ms(20, 10),
        ("Net > Net.fc.0 > linear(8x4, 4x4, 4)", "backward"): ms(53, 10),
        ("Net > Net.fc.1", "forward"): ms(1, 10),
        ("Net > Net.fc.1 > linear(8x4, 4x4, 4)", "forward"): ms(20, 10),
        ("Net > Net.fc.1 > linear(8x4, 4x4, 4)", "backward"): ms(54, 10),
        ("cross_entropy(8x4, 8)", "forward"): ms(5, 10),
        ("cross_entropy(8x4, 8)", "backward"): ms(7, 10),
        ("(optimizer) SGD", "optimizer"): ms(10, 10),
        ("(outside modules)", "outside"): ms(15, 0),
    },
    {"Net": "Net", "Net.fc.0": "Linear", "Net.fc.1": "Linear"},
)


def full(profile: ProfileData, name: str, sort_by: SortBy | None = None) -> Table:
    return table(list(full_tables(profile, sort_by)), name)


def test_the_tree_of_modules() -> None:
    tree = full(TRAINED, "modules")
    assert list(zip(tree.depths, tree.labels, strict=True)) == [
        (0, "Net"),
        (1, "fc.0: Linear"),
        (1, "fc.1: Linear"),
        (0, "(outside modules)"),
        (0, "(optimizer) SGD"),
        (0, "(backward outside modules)"),
    ]
    assert values(tree, "forward_ns")["Net"] == 52 * MS
    # Functions are parts of their modules; of a leaf, own time is all.
    assert values(tree, "forward_self_ns")["Net"] == 10 * MS
    assert values(tree, "forward_self_ns")["Net.fc.0"] is None
    assert sum(tree.shares) == pytest.approx(1)
    assert tree.ranks[1] == tree.ranks[2]


def test_a_tree_is_sorted_inside_of_each_module() -> None:
    names = full(TRAINED, "modules", "backward").names
    assert names[:3] == ["Net", "Net.fc.1", "Net.fc.0"]
    assert full(TRAINED, "modules", "calls").names[0] == "Net"


@pytest.mark.parametrize(
    "sort_by", ["calls", "forward", "backward", "recompute", "device", "self", "total"]
)
def test_any_order_has_all_rows(sort_by: SortBy) -> None:
    for name in ("modules", "functions", "call_sites"):
        usual, other = full(TRAINED, name), full(TRAINED, name, sort_by)
        assert Counter(usual.labels) == Counter(other.labels)


def test_marks_of_modules() -> None:
    profile = made(
        {("N", "forward"): ms(1), ("N > N.fast", "forward"): ms(3)},
        {"N": "N", "N.fast": ModuleInfo("Fast", aliases=("N.quick",), compiled=True)},
    )
    tree = full(profile, "modules")
    assert tree.labels[1] == "fast: Fast [compiled] [shared]"
    assert tree.notes == ["[shared] N.fast is also N.quick"]


def test_labels_leave_out_what_the_row_around_says() -> None:
    profile = made(
        {
            ("Net#2", "forward"): ms(1),
            ("Net#2 > Net#2.a.b", "forward"): ms(5),
            ("Net#2 > Net#2.a.b > Net.shared", "forward"): ms(3),
        },
        {"Net#2": "Net", "Net#2.a.b": "B", "Net.shared": "Linear"},
    )
    assert full(profile, "modules").labels == [
        "Net#2: Net",
        "a.b: B",
        "Net.shared: Linear",
    ]


def test_functions_and_call_sites() -> None:
    functions = full(TRAINED, "functions")
    assert values(functions, "self_ns") == {
        "linear": 147 * MS,
        "cross_entropy": 12 * MS,
        "relu": 6 * MS,
        "(modules, outside functions)": 6 * MS,
    }
    # The row of modules is there however little room there is.
    assert chosen_rows(functions, 2) == [0, 3]
    sites = full(TRAINED, "call_sites")
    assert values(sites, "self_ns") == {
        "Net.fc.*: linear(8x4, 4x4, 4)": 147 * MS,
        "cross_entropy(8x4, 8)": 12 * MS,
        "Net: relu(8x4)": 6 * MS,
    }


def test_layers_of_a_kind_with_other_inputs_are_call_sites_of_their_own() -> None:
    cells: dict[tuple[str, Phase], Totals] = {}
    for layer, width in enumerate((4, 4, 8)):
        cells[f"Net.{layer}.fc > linear({width})", "forward"] = ms(10)
    cells["Net.0.fc > linear(5)", "forward"] = ms(1)
    profile = made(cells, {f"Net.{layer}.fc": "Linear" for layer in range(3)})
    assert {row.name: row.calls for row in call_sites(profile)} == {
        "Net.*.fc: linear(4)": 2,
        "Net.2.fc: linear(8)": 1,
        "Net.0.fc: linear(5)": 1,
    }


def test_without_functions_there_are_no_tables_of_them() -> None:
    profile = made({("Net", "forward"): ms(1)}, {"Net": "Net"})
    assert [block.name for block in full_tables(profile, None)] == ["modules"]


@pytest.mark.parametrize("by", GROUPINGS)
def test_rows_in_a_table(by: Grouping) -> None:
    found = grouped_table(TRAINED, by, "self")
    own = list(values(found, "self_ns").values())
    assert sum(own) == TRAINED.wall_ns
    assert own == sorted(own, reverse=True)
    assert sum(found.shares) == pytest.approx(1)
    assert grouped_table(Profile(), by, "total").labels == []


def counted(self_ms: float, flops: int, calls: int = 2) -> Totals:
    return replace(ms(self_ms, calls, self_ms / 2), flops=flops)


#: Net 10 ms, relu 10; fc 5, linear 15 + 30 + 10 (recomputed); outside 20.
COUNTED = made(
    {
        ("Net", "forward"): ms(10, 2, 5),
        ("Net > relu(8x4)", "forward"): ms(10, 2, 5),
        ("Net > Net.fc", "forward"): ms(5, 2, 2.5),
        ("Net > Net.fc > linear(8x4)", "forward"): counted(15, 3_000_000),
        ("Net > Net.fc > linear(8x4)", "backward"): counted(30, 6_000_000),
        ("Net > Net.fc > linear(8x4)", "recompute"): counted(10, 3_000_000),
        ("(outside modules)", "outside"): ms(20, 0),
    },
    {"Net": "Net", "Net.fc": "Linear"},
    steps=2,
)


def test_operations_of_modules() -> None:
    # Net: 55 of 80 ms in linear; fc: 55 of 60. 12 M in 80 ms are 150 M in a second.
    flops = full(COUNTED, "flops")
    assert values(flops, "forward_flops") == {"Net": 1.5e6, "Net.fc": 1.5e6}
    assert values(flops, "total") == {"Net": 6e6, "Net.fc": 6e6}
    assert values(flops, "self_flops") == {"Net": 0, "Net.fc": 6e6}
    assert values(flops, "FLOP/s") == {"Net": 150e6, "Net.fc": 200e6}
    assert values(flops, "no formula") == {
        "Net": 25 / 80,
        "Net.fc": pytest.approx(5 / 60),
    }
    # On the device's clock, where it was read: half the time.
    on_device = replace(COUNTED, devices=("cuda:0",))
    assert values(full(on_device, "flops"), "FLOP/s")["Net"] == 300e6
    without_steps = COUNTED.with_parts(lambda part: replace(part, steps=0))
    assert values(full(without_steps, "flops"), "total")["Net"] == 12e6


def test_utilisation() -> None:
    known = replace(COUNTED, peak=Peak(240_000_000, "given"))
    flops = full(known, "flops")
    assert values(flops, "mfu")["Net"] == pytest.approx(9e6 / 0.08 / 240e6)
    assert values(flops, "hfu")["Net"] == pytest.approx(150 / 240)
    rates = facts_of(known, "rates").numbers
    assert rates["hfu"] == pytest.approx(12e6 / 0.1 / 240e6)
    exceeded = replace(COUNTED, peak=Peak(1_000_000, "given"))
    assert facts.utilisation_text(exceeded).startswith("unknown")
    assert "exceeded" in full(exceeded, "flops").notes[0]
    none = made({("Net", "forward"): ms(1)}, {"Net": "Net"}, peak=Peak(1, "given"))
    assert facts.utilisation_text(none).startswith("unknown")
    assert facts.utilisation_text(COUNTED) == ""


def test_items_per_second() -> None:
    rates = facts_of(replace(LOOP, items=100), "rates").numbers
    assert rates == {"items_per_second": 100 / 4 / 0.025}


# Memory


CUDA = MemorySummary("cuda:0", 3 * MB, ("Net", "Net.fc"), "backward")


def given(
    calls: int, used: int, acquired: int = 0, retained: int = 0, peak: int = 0
) -> Totals:
    """A cell of so many calls, each of which uses and retains that much."""
    return ms(1, calls, 0, MemoryTotals(calls * used, acquired, calls * retained, peak))


# Ten steps of Net, which calls fc and then block, which is recomputed.
ALLOCATING = made(
    {
        ("Net", "forward"): given(10, 2 * MB, 20 * MB, MB, 9 * MB),
        ("Net > Net.fc", "forward"): given(10, 3 * MB, 0, 3 * MB, 3 * MB),
        ("Net > Net.block", "forward"): given(10, MB, 0, 0, 512 * KB),
        ("Net", "backward"): given(10, 0, 0, 0, 7 * MB),
        ("Net > Net.fc", "backward"): given(10, 6 * MB, 2 * MB, -3 * MB, 8 * MB),
        ("Net > Net.block", "backward"): given(10, 4 * MB, 0, 0, 6 * MB),
        ("Net > Net.block", "recompute"): given(10, MB, 0, 0, 512 * KB),
        ("(optimizer) SGD", "optimizer"): given(10, 600 * KB, 3 * MB, 0, 700 * KB),
        ("(outside modules)", "outside"): given(0, 0, 64 * MB),
        ("(profiler)", "profiler"): ms(1),
    },
    {"Net": "Net", "Net.fc": "Linear", "Net.block": "Block"},
    memory=CUDA,
)


def test_bytes_are_per_call() -> None:
    # Net, with fc and block: forward 2 + 3 + 1, of which 1 + 3 remain, backward 6 + 4;
    # it is recomputed in parts only, so per forward call. Its peak is that of its own
    # calls. Acquired: 20, and 2 in fc's backward.
    memory = full(ALLOCATING, "memory")
    net = {c.name: c.values[0] for c in memory.columns}
    assert net == {
        "forward_used_bytes": 6 * MB,
        "retained_bytes": 4 * MB,
        "backward_used_bytes": 10 * MB,
        "recompute_used_bytes": MB,
        "optimizer_used_bytes": 0,
        "data_used_bytes": 0,
        "communication_used_bytes": 0,
        "peak_bytes": 9 * MB,
        "acquired_bytes": 22 * MB,
    }
    assert "(profiler)" not in memory.names


def test_bytes_of_functions_are_their_own() -> None:
    forward = MemoryTotals(20 * KB, 0, 20 * KB, 2048)
    backward = MemoryTotals(99 * KB, 0, 0, 3072)
    profile = made(
        {
            ("Net > linear(8x4)", "forward"): ms(20, 10, 0, forward),
            ("Net > linear(8x4)", "backward"): ms(70, 10, 0, backward),
        },
        {"Net": "Net"},
        memory=MemorySummary("cuda:0"),
    )
    for name in ("functions", "call_sites"):
        found = full(profile, name)
        assert next(iter(values(found, "used_bytes").values())) == 2 * KB
        assert next(iter(values(found, "peak_bytes").values())) == 3 * KB


@pytest.mark.parametrize(
    ("memory", "owner"),
    [
        (MemorySummary("cuda:1", 1), "(outside modules)"),
        (
            MemorySummary("cuda:1", 1, ("Net.b",), "recompute"),
            "Net.b (recompute)",
        ),
        (
            MemorySummary("cuda", 1, ("Net", "f(2)", "g(3)"), "forward"),
            "Net: g(3) (forward)",
        ),
        (MemorySummary("cuda", 1, ("g(3)",), "backward"), "g(3) (backward)"),
        (
            MemorySummary("cuda", 1, ("(optimizer) SGD",), "optimizer"),
            "(optimizer) SGD",
        ),
        (MemorySummary("cuda", 1, ("Gone",), "forward"), "Gone (forward)"),
    ],
)
def test_the_call_that_set_the_peak(memory: MemorySummary, owner: str) -> None:
    profile = made(
        {
            ("Net > f(2) > g(3)", "forward"): ms(1),
            ("Net.b", "forward"): ms(1),
            ("(optimizer) SGD", "optimizer"): ms(1),
        },
        {"Net": "Net", "Net.b": "B"},
        memory=memory,
    )
    numbers = facts_of(profile, "rates").numbers
    assert numbers == {"memory_peak_bytes": 1, "memory_peak_owner": owner}


def test_memory_that_could_not_be_measured() -> None:
    profile = replace(RUN, memory=MemorySummary(unavailable="no counter"))
    assert "no counter" in facts_of(profile, "rates").lines[0]
    *_, last = full_tables(profile, None)
    assert isinstance(last, Facts)
    assert "no counter" in last.lines[0]


def test_communication() -> None:
    found = communication(
        [
            Collective("all_reduce", "", 2, 4, 4 * MB, 5, 20, 0),
            Collective("barrier", "dp", 4, 3, 0, 100, 0, 10),
        ]
    )
    assert found.labels == ["barrier (dp of 4)", "all_reduce (of 2)"]
    assert values(found, "call_bytes") == {
        "barrier (dp of 4)": None,
        "all_reduce (of 2)": MB,
    }
    assert values(found, "gb_per_s")["all_reduce (of 2)"] is None


# All of it


def check_size(text: str, width: int = 120, lines: int = 40) -> None:
    assert len(text.splitlines()) <= lines
    assert max(map(len, text.splitlines())) <= width


def test_ten_thousand_modules_are_a_screen() -> None:
    groups = [f"Net.{letter}{n}" for letter in "abcdefghij" for n in range(10)]
    names = {f"{group}.{n}": "Linear" for group in groups for n in range(100)}
    cells: dict[tuple[str, Phase], Totals] = {
        (f"Net > {name}", "forward"): ms(1, 2) for name in names
    }
    text = made(cells, {"Net": "Net", **names}).report()
    check_size(text)
    assert "100 Linear" in text


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("profile", [RUN, TRAINED, COUNTED, ALLOCATING, BUSY])
def test_reports_keep_their_width(profile: Profile, width: int) -> None:
    check_size(profile.report(width=width), width)
    check_size(profile.report(full=True, width=max(width, 80)), max(width, 80), 999)


def test_nothing_was_called() -> None:
    for full_ in (True, False):
        text = Profile(not_measured=("FLOPs",)).report(full=full_)
        assert "No module was called" in text
        assert "FLOPs" in text
    left_out = Profile(measured=MeasuredSteps(3))
    assert "No step was measured" in left_out.report()


def test_a_full_report_has_the_parts_of_the_screen_and_the_tables() -> None:
    text = RUN.report(full=True)
    assert "Modules of the whole run" in text
    assert "Call sites of the whole run" in text
    assert "whole run" not in LOOP.report(full=True)
    assert text.splitlines()[:6] == RUN.report().splitlines()[:6]


@pytest.mark.parametrize(
    ("given_", "name"),
    [
        ({"unit": "ms"}, "unit"),
        ({"max_rows": 3}, "max_rows"),
        ({"sort_by": "self"}, "sort_by"),
    ],
)
def test_what_is_for_tables_is_refused_without_them(
    given_: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is for the tables of report\("):
        RUN.report(**given_)
    assert RUN.report(full=True, **given_)


@pytest.mark.parametrize("profile", [RUN, Profile()])
@pytest.mark.parametrize(
    ("given_", "error"),
    [
        ({"unit": "min"}, ValueError),
        ({"unit": 3}, TypeError),
        ({"width": 0}, ValueError),
        ({"width": "wide"}, TypeError),
        ({"max_rows": 0}, ValueError),
        ({"max_rows": True}, TypeError),
        ({"sort_by": "name"}, ValueError),
        ({"full": 1}, TypeError),
    ],
)
def test_invalid_parameters_are_named(
    profile: Profile, given_: dict[str, Any], error: type[Exception]
) -> None:
    (name,) = given_
    with pytest.raises(error, match=rf"^{name} "):
        profile.report(**{"full": True, **given_})


def test_a_screen_may_have_fewer_lines() -> None:
    text = report(RUN, Layout(), full=False, lines=25, more="--full")
    check_size(text, lines=25)
    assert "--full" in text.splitlines()[-1]
    assert text_of(document_of(RUN), lines=25).splitlines()[:9] == text.splitlines()[:9]
