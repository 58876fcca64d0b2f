"""What the screen says of a profile: answers, phases, layers, sentences."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tests.documents.found import block, table_in, values
from tests.documents.made import MS, after, made, ms, with_unmeasured
from tests.documents.runs import BUSY, LOOP, NAMES, RUN, START
from torchprof_hooks.documents.build import device, facts, screen
from torchprof_hooks.documents.build.module_table import folded_modules
from torchprof_hooks.documents.build.view import View, view_of
from torchprof_hooks.documents.document import Answer, Document, Facts, Table
from torchprof_hooks.documents.render.table import chosen_rows
from torchprof_hooks.documents.words import PHASE_TITLES, phase_times_ns
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.memory import MemorySummary
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import OtherPhase, Phase
from torchprof_hooks.profiles.program import Program
from torchprof_hooks.profiles.provenance import Provenance
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.profiles.trace.device_idle import IdleRow
from torchprof_hooks.profiles.trace.device_step import DeviceStep, DeviceUse

Cells = dict[tuple[str, Phase], Totals]


def document_of(profile: ProfileData) -> Document:
    return screen.screen_document(view_of(profile), "more")


def answers(profile: ProfileData) -> dict[str, Answer]:
    return {a.name: a for a in screen.answers(view_of(profile)).answers}


def hottest(profile: ProfileData) -> Answer:
    return answers(profile)["hottest_module"]


# The loop, with the start-up apart


def test_the_screen_is_about_the_loop() -> None:
    document = document_of(RUN)
    phases = table_in(document, "phases")
    assert values(phases, "self_ns") == {
        "backward": 40 * MS,
        "forward": 28 * MS,
        "outside": 24 * MS,
        "optimizer": 8 * MS,
    }
    assert values(phases, "start_up_ns")["outside"] == 924 * MS
    assert sum(values(phases, "share").values()) == pytest.approx(1)
    assert values(phases, "step_ns")["optimizer"] == 2 * MS
    layers = table_in(document, "layers")
    assert values(layers, "cumulative_ns") == {
        "LM": 68 * MS,
        "LM.blocks.*": 66 * MS,
        "LM.blocks.*.mlp": 60 * MS,
        "LM.blocks.*.norm": 2 * MS,
    }
    assert list(layers.depths) == [0, 1, 2, 2]
    assert list(layers.tones) == ["", "", "hot", ""]
    functions = table_in(document, "hot_functions")
    assert values(functions, "self_ns") == {"linear": 60 * MS, "loss": 3 * MS}
    lines = table_in(document, "lines")
    assert values(lines, "total") == {"train.py:31": 68 * MS, "train.py:32": 3 * MS}


LATER_EMPTY = replace(LOOP, parts=(replace(LOOP.parts[0], cells={}),))
ONCE = made({("LM", "forward"): ms(1)}, NAMES)


@pytest.mark.parametrize(
    ("run", "has_start_up"),
    [
        (RUN, True),
        (RUN.loop, False),
        (RUN.start_up, False),
        (after(START, ONCE), False),
        (after(START, LATER_EMPTY), False),
    ],
    ids=["both", "loop alone", "start-up alone", "nothing repeated", "nothing later"],
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
    view = view_of(after(start, replace(loop, program=Program("a.py", 10**9))))
    assert view.start_up is not None
    assert view.end_of_start_up == "the first 64 evaluation calls"
    assert view.title == "a.py"
    assert view_of(after(start, loop)).start_up is None


# Answers


def test_a_phase_of_no_module_may_take_most() -> None:
    cells: Cells = {
        ("Net", "forward"): ms(10),
        ("Net", "backward"): ms(20),
        ("(data loading)", "data"): ms(60),
        ("(outside modules)", "outside"): ms(10, 0),
    }
    profile = made(cells, {"Net": "Net"})
    most = answers(profile)["most_time"]
    assert (most.answer, most.share) == ("data loading", 0.6)
    times = phase_times_ns(profile)
    assert times.total() == profile.wall_ns
    assert [*times] == [phase for phase in PHASE_TITLES if phase in times]


def test_no_modules_or_no_time_have_no_answers() -> None:
    assert answers(Profile()) == {}
    functions = made({("relu(3)", "forward"): ms(4)}, {})
    assert [*answers(functions)] == ["bottleneck", "most_time"]
    assert not table_in(document_of(functions), "layers").labels


def with_spread(calls: int, std_ms: float) -> Profile:
    """One module whose calls of 10 ms differ."""
    squares = calls * round((100 + std_ms**2) * MS**2)
    own_ns = 10 * calls * MS
    totals = Totals(calls, own_ns, duration_ns=own_ns, squares_ns2=squares)
    return made({("Net", "forward"): totals}, {"Net": "Net"})


def test_the_uncertainty_of_a_share_is_its_standard_error() -> None:
    # 25 calls that differ by 2 ms: their sum of 250 ms by 5 * 2 ms.
    profile = with_spread(25, 2)
    assert hottest(profile).uncertainty == pytest.approx(10 / 250)
    assert hottest(with_spread(1, 0)).uncertainty is None
    assert hottest(RUN).uncertainty is None


def test_phases_that_people_look_for_are_never_together_with_others() -> None:
    """They are the shortest here."""
    kinds: list[OtherPhase] = ["waiting", "communication", "compiling", "garbage"]
    cells: Cells = {
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


# Sentences


def test_the_names_of_a_run() -> None:
    assert view_of(RUN).title == "LM"
    many = made({(n, "forward"): ms(1) for n in "ABCD"}, dict.fromkeys("ABCD", "M"))
    assert view_of(many).title == "A, B, C, ..."
    one, two = Provenance(1, 4), Provenance(2, 4)
    run = replace(RUN, provenance=(one,))
    assert facts.title_of(view_of(run)) == "rank 1 of 4, LM"
    assert facts.title_of(view_of(replace(run, provenance=(one, two)))) == "LM"


STEPS = "5 steps: first 1.00sec, then 25.00ms (median 20.00ms, 90 % within 40.00ms)"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, f"{STEPS}, 2 evaluation calls of 3.00ms"),
        ({"evaluations": 0}, STEPS),
        ({"evaluations": 0, "later": ()}, "5 steps of 1.00sec"),
        (
            {"evaluations": 0, "first_steps": 0},
            STEPS.replace(": first 1.00sec, then", " of"),
        ),
        (
            {"first_evaluations": 1, "first_evaluation_ns": 5 * MS},
            f"{STEPS}, 2 evaluation calls: first 5.00ms, then 1.00ms",
        ),
        (
            {"evaluations": 1, "first_evaluations": 1, "first_evaluation_ns": 5 * MS},
            f"{STEPS}, 1 evaluation call of 5.00ms with the start-up",
        ),
    ],
)
def test_durations_of_steps(changes: dict[str, Any], text: str) -> None:
    times = RUN.step_times._replace(**changes)
    run = replace(RUN, parts=(replace(RUN.parts[0], steps=5, step_times=times),))
    assert ", ".join(facts.step_texts(view_of(run))) == text


# Some of the steps


SOME = with_unmeasured(RUN, 11_995, 60_000 * MS, 0.042, 0.01, 0.031, 0.02, 0.05)


def test_a_screen_is_of_the_measured_steps() -> None:
    whole, some = document_of(RUN), document_of(SOME)
    phases = table_in(some, "phases")
    assert phases.notes == ["not measured: 60.00sec in 11995 steps"]
    same = [replace(phases, notes=[]) if b is phases else b for b in some.blocks[:-1]]
    assert same == whole.blocks[:-1]
    assert [*some.notes] == [
        whole.notes[0].replace("wall", "measured"),
        whole.notes[1].replace("5 steps", "5 of 12000 steps measured"),
        "measured steps took 3.1 % longer than the others (median of 5 blocks, half of "
        "them between 2.0 and 4.2 %)",
    ]


@pytest.mark.parametrize(
    ("longer", "text"),
    [
        ((), "is known after 6 blocks of them: there were 1"),
        ((0.1,), "is known after 6 blocks of them: there were 2"),
        ((-0.02, -0.01, 0, 0.01, 0.02), "took no longer than the others (median of 5"),
    ],
)
def test_how_much_longer_measured_steps_took(
    longer: tuple[float, ...], text: str
) -> None:
    few = with_unmeasured(RUN, 10, MS, *longer)
    assert text in document_of(few).notes[-1]
    assert len(document_of(RUN).notes) == 2


def test_what_measuring_took_is_counted_where_it_cannot_be_compared() -> None:
    def said(run: Profile) -> str:
        return block(document_of(run), Facts, "measuring").lines[0]

    assert said(RUN).startswith("Measuring took at least ")
    assert said(with_unmeasured(RUN, 9, MS, 0.1)) == said(RUN)
    assert said(SOME) == "What measuring took is told above"


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (LOOP, "at least 3.0 %"),
        (replace(LOOP, overhead_ns=2 * MS), "at least 2.0 %"),
        (
            with_unmeasured(
                replace(LOOP, program=Program("a.py", 400 * MS)), 9, 200 * MS
            ),
            "at least 1.5 %",
        ),
        # A program takes longer than its rows do; before its end, that is not known.
        (replace(LOOP, program=Program("a.py", 200 * MS)), "at least 1.5 %"),
        (replace(LOOP, program=Program("a.py")), "at least 3.0 %"),
        (replace(LOOP, overhead_ns=101 * MS), "at least 100.0 %"),
        (Profile(overhead_ns=1), "at least 0.0 %"),
    ],
)
def test_what_measuring_took(run: Profile, text: str) -> None:
    assert facts.overhead_text(view_of(run)) == text


@pytest.mark.parametrize(
    ("path", "phase", "owner"),
    [
        ((), "outside", "(outside modules)"),
        (("Net.b",), "recompute", "Net.b (recompute)"),
        (("Net", "f(2)", "g(3)"), "forward", "Net: g(3) (forward)"),
        (("g(3)",), "backward", "g(3) (backward)"),
        (("(optimizer) SGD",), "optimizer", "(optimizer) SGD"),
        (("Gone",), "forward", "Gone (forward)"),
    ],
)
def test_the_call_that_set_the_peak(
    path: tuple[str, ...], phase: Phase, owner: str
) -> None:
    cells: Cells = {
        ("Net > f(2) > g(3)", "forward"): ms(1),
        ("Net.b", "forward"): ms(1),
        ("(optimizer) SGD", "optimizer"): ms(1),
    }
    memory = MemorySummary("cuda:1", 1, path, phase)
    profile = made(cells, {"Net": "Net", "Net.b": "B"}, memory=memory)
    numbers = block(document_of(profile), Facts, "rates").numbers
    assert numbers == {"memory_peak_bytes": 1, "memory_peak_owner": owner}


def test_memory_that_could_not_be_measured() -> None:
    profile = replace(RUN, memory=MemorySummary(unavailable="no counter"))
    assert "no counter" in block(document_of(profile), Facts, "rates").lines[0]


def test_items_per_second() -> None:
    rates = block(document_of(replace(LOOP, items=100)), Facts, "rates").numbers
    assert rates == {"items_per_second": 100 / 4 / 0.025}


# Layers


def shown(profile: ProfileData, most: int) -> list[str]:
    """The rows of the layers with room for so many, the hottest marked."""
    found = folded_modules(view_of(profile))
    return [
        "  " * found.depths[n] + found.names[n] + " *" * (found.tones[n] == "hot")
        for n in chosen_rows(found, most)
    ]


def modules(own_ms: dict[str, float], classes: dict[str, str] | None = None) -> Profile:
    """Modules that take so long; their classes are called as they are themselves, but
    for those that are given."""
    cells: Cells = {(path, "forward"): ms(own) for path, own in own_ms.items()}
    names = {name for path in own_ms for name in path.split(" > ")}
    kinds = {name: name.rpartition(".")[2] for name in names}
    return made(
        cells, {n: (classes or {}).get(kind, kind) for n, kind in kinds.items()}
    )


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
    own_ms = {
        f"Net > Net.{stage}.{place}": 20.0 - 10 * place
        for stage, place in product(range(3), range(2))
    }
    profile = modules(own_ms, {"0": "Conv2d", "1": "ReLU"})
    hot = hottest(profile)
    assert (hot.answer, hot.numbers["class_name"]) == ("Net.*.*", "Conv2d")
    assert hot.numbers["modules"] == 3
    labels = folded_modules(view_of(profile)).labels
    assert labels == ["Net", "*.*: 3 Conv2d", "*.*: 3 ReLU"]


def test_the_hottest_layers_are_shown_however_many_others_take_more() -> None:
    own = {
        f"Net > Net.w{'x' * outer} > Net.w{'x' * outer}.v{'y' * inner}": 10.0
        for outer, inner in product(range(30), range(3))
    }
    rows = shown(modules({**own, "Net > Net.quiet > Net.quiet.hot": 11}), 14)
    assert len(rows) == 14
    assert rows[rows.index("  Net.quiet") + 1] == "    Net.quiet.hot *"


# Devices


def test_a_device_that_is_always_busy_tells_what_is_hot() -> None:
    first, hot, most = answers(BUSY).values()
    assert (first.answer, first.numbers["phase"]) == (hot.answer, "backward")
    assert (hot.answer, hot.share) == ("Net.large", 0.9)
    assert hot.numbers["clock"] == "cuda"
    assert (most.answer, most.share) == ("backward", 0.52)
    assert shown(BUSY, 2)[-1] == "  Net.large *"
    assert table_in(document_of(BUSY), "hot_functions").labels == ["linear", "relu"]


@pytest.mark.parametrize(
    ("asked", "waits", "says_that_it_waits"),
    [
        (40, 31, True),
        (40, 29, False),
        (40, 20, False),
        (19, 19, False),
        (19, 0, False),
        (0, 0, False),
    ],
)
def test_a_device_that_waits_for_the_host_or_is_not_known(
    asked: int, waits: int, says_that_it_waits: bool
) -> None:
    other = replace(BUSY, device_asked=asked, device_waits=waits)
    assert hottest(other).answer == "Net.small"
    assert answers(other)["most_time"].numbers["clock"] == "host"
    assert bool(facts.device_text(other)) is says_that_it_waits


def traced(step: DeviceStep) -> View:
    return view_of(replace(BUSY, device_step=step))


def test_idle_time_of_a_device_by_layers_of_a_kind() -> None:
    rows = (
        IdleRow("Net.layers.0.mlp", "forward", 8 * MS),
        IdleRow("Net.layers.1.mlp", "forward", 7 * MS),
        IdleRow("Net.layers.0.mlp", "backward", 6 * MS),
        IdleRow("(data loading)", "data", 9 * MS),
    )
    idle = DeviceStep(5, 100 * MS, (DeviceUse("cuda:0", 70 * MS, rows),))
    found = block(device.idle_blocks(traced(idle)), Table)
    assert values(found, "idle_ns") == {
        "Net.layers.*.mlp, forward": 15 * MS,
        "(data loading)": 9 * MS,
        "Net.layers.*.mlp, backward": 6 * MS,
    }
    assert "busy 70.0 % of step 5 (100.00ms), idle 30.00ms" in found.title


@pytest.mark.parametrize(
    ("idle", "said"),
    [
        (DeviceStep(5, 9, (DeviceUse("cuda:1", 9),)), "cuda:1: busy 100.0 % of step 5"),
        (DeviceStep(4, 9), "no kernels of a device were recorded in step 4"),
        (DeviceStep(reason="of another profiler"), "of another profiler"),
    ],
)
def test_no_idle_time_says_why(idle: DeviceStep, said: str) -> None:
    assert said in block(device.idle_blocks(traced(idle)), Facts).lines[0]
