"""What takes most leads, module or not, in the screen, the page, JSON and the tips."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.build import MS, Cells, after, ms, profile_of
from tests.documents.found import page_document
from tests.documents.runs import BUSY
from torchprof_hooks.documents.build.rules import find_tips
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.documents.render.html import page_of
from torchprof_hooks.documents.report import to_json
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.program import Program

MODULES = {"Net": "Net", "Net.0": "Linear", "Net.1": "Linear"}


def a_run(cells: Cells, layer_ms: float = 10, **facts: Any) -> Profile:
    """Steps of 100 ms in all: two layers, which take so long together, the cells, and
    the profiler."""
    every: Cells = {
        ("Net > Net.0", "forward"): ms(layer_ms / 2),
        ("Net > Net.1", "forward"): ms(layer_ms / 2),
        **cells,
    }
    rest_ms = 100 - sum(totals.self_ns for totals in every.values()) / MS
    every["(profiler overhead)", "profiler"] = ms(rest_ms)
    return profile_of(every, MODULES, steps=10, **facts)


def first(profile: Profile) -> Any:
    """The first answer of the report for programs, which is the bottleneck; that of the
    screen says the same, and the first tip."""
    found: dict[str, Any] = json.loads(to_json(profile))["answers"]
    name, answer = next(iter(found.items()))
    assert name == "bottleneck"
    line = profile.report().splitlines()[2 - (not profile.steps)]
    assert line.startswith(f"{answer['question']}: {answer['answer']}, ")
    if answer["numbers"]["kind"] != "module":
        tips = find_tips(view_of(profile))
        assert answer["next_step"] == "".join(tip.remedy for tip in tips[:1])
    assert f"<h2>{answer['question']}</h2>" in page_of(page_document(profile))
    return answer


LEADING: dict[str, Profile] = {
    "data": a_run({("(data loading)", "data"): ms(11, 10)}),
    "an optimizer": a_run({("(optimizer) Adam", "optimizer"): ms(20, 10)}),
    "other processes": a_run(
        {
            ("(waiting for gradients)", "waiting"): ms(8, 10),
            ("(communication) broadcast", "communication"): ms(4, 10),
        }
    ),
    "compiling": a_run({("(torch.compile)", "compiling"): ms(30, 3)}),
    "garbage": a_run({("(garbage collection)", "garbage"): ms(30, 10)}),
    "the program": a_run({("(outside modules)", "outside"): ms(30, 0)}),
    "a loss": a_run(
        {
            ("loss(8)", "forward"): ms(10, 10),
            ("loss(8)", "backward"): ms(16, 10),
            ("(outside modules)", "outside"): ms(4, 0),
        }
    ),
}


@pytest.mark.parametrize("profile", LEADING.values(), ids=LEADING)
def test_what_is_no_module_leads_if_it_takes_most(profile: Profile) -> None:
    """A golden document has the words."""
    found = first(profile)
    assert found["question"] == "Bottleneck"
    assert found["share"] == found["numbers"]["self_ns"] / profile.wall_ns


def test_backward_of_functions_that_were_not_measured_is_said_once() -> None:
    """That of losses."""
    run = a_run(
        {
            ("(outside modules)", "outside"): ms(30, 0),
            ("(backward outside modules)", "backward"): ms(20, 10),
        }
    )
    assert first(run)["evidence"] == "with 20.0 % in backward, 10 steps, 5.00ms each"


def test_evaluation_calls_are_in_no_step() -> None:
    """So what is outside of modules is not that of steps alone."""
    run = LEADING["the program"]
    assert first(run)["evidence"] == "10 steps, 3.00ms each"
    [part] = run.parts
    times = part.step_times._replace(evaluations=2, evaluation_ns=20 * MS)
    evaluated = replace(run, parts=(replace(part, step_times=times),))
    assert first(evaluated)["evidence"] == "30.00ms in all"
    tables = [str(page_document(each)) for each in (run, evaluated)]
    assert ["per step, with evaluation" in text for text in tables] == [False, True]


@pytest.mark.parametrize(
    ("cells", "layer_ms"),
    [
        ({("(data loading)", "data"): ms(11, 10)}, 11),
        # Too little to be called that, even if no layers take more.
        ({("(data loading)", "data"): ms(9.9, 10)}, 5),
        ({("(optimizer) Adam", "optimizer"): ms(19, 10)}, 15),
        ({("(outside modules)", "outside"): ms(19, 10)}, 15),
        # Nothing can be done about these.
        ({("(before torch was imported)", "outside"): ms(70, 0)}, 5),
    ],
)
def test_else_layers_do(cells: Cells, layer_ms: float) -> None:
    profile = a_run(cells, layer_ms)
    found = first(profile)
    assert (found["question"], found["answer"]) == ("Hottest module", "Net.*")
    assert found["numbers"]["phase"] == "forward"
    report = json.loads(to_json(profile))["answers"]
    assert report["hottest_module"]["share"] == found["share"]
    # That would be the same line, and the same card, twice.
    assert profile.report().count("Hottest module") == 1
    assert page_of(page_document(profile)).count("<h2>Hottest module") == 1


def test_a_device_that_waits_has_the_host_for_a_bottleneck() -> None:
    waiting = replace(BUSY, device_asked=40, device_waits=31)
    host = replace(
        waiting, parts=(waiting.parts[0].with_cells(_without_outside(waiting)),)
    )
    found = first(host)
    assert (found["answer"], found["share"]) == ("the host", 1)
    assert found["evidence"].startswith("cuda waited for it at 77.5 % of calls")
    assert "the most in Net.small 66.7 %" in found["evidence"]
    assert "Net.small" in found["next_step"]
    # By the clock of a device that is busy, layers take most; the rest is the host's.
    assert first(BUSY)["answer"] == "Net.large"


def _without_outside(profile: Profile) -> Any:
    return {k: t for k, t in profile.cells.items() if k[1] != "outside"}


OUTSIDE = a_run({("(outside modules)", "outside"): ms(60, 0)}, program=Program("x.py"))


GARBAGE = a_run(
    {("(garbage collection)", "garbage"): ms(60, 3)}, program=Program("x.py")
)


@pytest.mark.parametrize(
    ("run", "answer"),
    [(OUTSIDE, "outside modules"), (GARBAGE, "garbage collection")],
)
def test_imports_of_a_program_are_no_bottleneck(run: Profile, answer: str) -> None:
    assert first(run)["answer"] == "Net.*"
    assert not find_tips(view_of(run))
    assert first(after(a_run({}, part="start-up"), run))["answer"] == answer


def test_what_comes_after_a_single_step_is_no_loop() -> None:
    for steps, answer in ((3, "outside modules"), (2, "Net.*")):
        parts = [replace(part, steps=steps) for part in OUTSIDE.parts]
        run = after(a_run({}, part="start-up"), replace(OUTSIDE, parts=tuple(parts)))
        assert first(run)["answer"] == answer
        told = [tip.rule for tip in find_tips(view_of(run))]
        assert ("outside modules" in told) is (steps == 3)
