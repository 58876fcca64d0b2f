"""What the screen says of a profile: answers, phases, layers, sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.build import MS, Cells, after, ms, profile_of, with_fields, with_unmeasured
from tests.documents.runs import BUSY, LOOP, NAMES, RUN, START, ran_out
from torchprof_hooks.documents.build import answers as screen
from torchprof_hooks.documents.build import facts
from torchprof_hooks.documents.build.blocks import Asked, document
from torchprof_hooks.documents.build.module_table import folded_modules
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.documents.document import Answer, Answers, Document
from torchprof_hooks.documents.render.table import chosen_rows
from torchprof_hooks.documents.render.text import text_of
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.parts import PartName
from torchprof_hooks.profiles.program import Program
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.totals import Totals


def document_of(profile: ProfileData) -> Document:
    return document(Asked(view_of(profile), "screen"))


def answers(profile: ProfileData) -> dict[str, Answer]:
    return {a.name: a for a in screen.answers(view_of(profile)).answers}


def hottest(profile: ProfileData) -> Answer:
    return answers(profile)["hottest_module"]


# The loop, with the start-up apart


LATER_EMPTY = replace(LOOP, parts=(replace(LOOP.parts[0], cells={}),))
ONCE = profile_of({("LM", "forward"): ms(1)}, NAMES)


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


@pytest.mark.parametrize(("garbage_ms", "is_said"), [(6, True), (4, False)])
def test_that_imports_are_in_the_start_up_is_said(
    garbage_ms: int, is_said: bool
) -> None:
    """Five in a hundred milliseconds, or more, of garbage collection tell of them."""
    start = profile_of(
        {
            ("LM", "forward"): ms(100 - garbage_ms),
            ("(garbage collection)", "garbage"): ms(garbage_ms),
        },
        NAMES,
        steps=1,
        part="start-up",
    )
    found = screen.phases(view_of(after(start, LOOP)))
    assert any("imports" in note for note in found.notes) is is_said


def test_a_program_may_begin_with_evaluation_calls() -> None:
    times = StepTimes(evaluations=64, evaluation_ns=START.wall_ns)
    start = with_fields(START, steps=0, step_times=times)
    loop = with_fields(LOOP, steps=0, step_times=StepTimes(evaluations=2))
    view = view_of(after(start, replace(loop, program=Program("a.py", 10**9))))
    assert view.start_up is not None
    assert view.end_of_start_up == "the first 64 evaluation calls"
    assert view.title == "a.py"
    assert view_of(after(start, loop)).start_up is None


# Answers


def with_spread(calls: int, std_ms: float) -> Profile:
    """One module whose calls of 10 ms differ."""
    squares = calls * round((100 + std_ms**2) * MS**2)
    own_ns = 10 * calls * MS
    totals = Totals(calls, own_ns, duration_ns=own_ns, squares_ns2=squares)
    return profile_of({("Net", "forward"): totals}, {"Net": "Net"})


def test_the_uncertainty_of_a_share_is_its_standard_error() -> None:
    # 25 calls that differ by 2 ms: their sum of 250 ms by 5 * 2 ms.
    profile = with_spread(25, 2)
    assert hottest(profile).uncertainty == pytest.approx(10 / 250)
    assert hottest(with_spread(1, 0)).uncertainty is None
    assert hottest(RUN).uncertainty is None


# Some of the steps


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


def generating(
    part: PartName, prefills: int, decodes: int, times: StepTimes
) -> Profile:
    """Of each prefill 10 ms, of each decode 100."""
    cells: Cells = {("prefill", "forward"): ms(10 * prefills, prefills)}
    if decodes:
        cells["decode > LM", "forward"] = ms(90 * decodes, 8 * decodes)
        cells["decode", "forward"] = ms(10 * decodes, decodes)
    names = {"prefill": "prefill", "decode": "decode", "LM": "LM"}
    program = Program("a.py", 10**9)
    return profile_of(cells, names, part=part, step_times=times, program=program)


def test_evaluations_of_several_models_have_no_mean_of_all() -> None:
    loop = generating("loop", 3, 2, StepTimes(0, 0, (), 5, 230 * MS))
    assert document_of(loop).notes[1] == (
        "5 evaluation calls: 3 prefill of 10.00ms, 2 decode of 100.00ms"
    )
    first = StepTimes(0, 0, (), 1, 50 * MS, (), 1, 50 * MS)
    start = generating("start-up", 1, 0, first)
    assert document_of(after(start, loop)).notes[1] == (
        "6 evaluation calls: first 50.00ms, "
        "then 3 prefill of 10.00ms, 2 decode of 100.00ms"
    )
    # More calls than those of the models.
    unknown = with_fields(loop, step_times=StepTimes(0, 0, (), 7, 700 * MS))
    assert document_of(unknown).notes[1] == "7 evaluation calls of 100.00ms"


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
    return profile_of(
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


def test_layers_that_are_called_in_two_places_are_marked_in_one() -> None:
    found = modules({"A > B": 10, "A > B > C": 30, "D > C": 20})
    assert [row for row in shown(found, 9) if "*" in row] == ["    C *"]


def test_if_memory_ran_out_nothing_is_marked() -> None:
    assert not any("*" in row for row in shown(ran_out(1), 9))


def test_a_warning_is_whole() -> None:
    warning = Answers([], ["of memory, " * 30 + "that is all"])
    text = text_of(Document("profile", "Net", [], [warning]), lines=40)
    assert text.endswith("that is all")


# Devices


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
