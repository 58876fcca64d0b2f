"""The gate for the cost of hooks: counts that are the same on every machine.

Counted are calls into this package and out of it, for each link of a chain of modules
(or functions) and for each step. They do not depend on versions of Python and torch.
What costs more than the tables below say fails, and so does what costs less: the new
number then belongs into the table, for otherwise the next call that is added would go
unseen. What is kept in memory: `test_bounds`.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE
from tests.cost.chains import (
    CASES,
    LONG,
    PACKAGE,
    SHORT,
    Case,
    make_chain,
    make_comparable,
    run,
)
from tests.cost.loops import Net, X, sgd
from tests.exact import OPTIONS
from tests.helpers import run_traced
from tests.invisible import EveryFunction, EveryLink
from tests.thorough import THOROUGH
from torchprof_hooks import profile


class Costs(NamedTuple):
    """Counts of a forward, and of its backward."""

    forward: int
    backward: int


class Expected(NamedTuple):
    """step: calls for a step at most, however many links it has: the container of the
        modules; a pass that begins and ends; and counting the step, here in the forward
        after it, since no optimizer steps.
    link: calls for each link. Hooks, passes and functions are none of Python's, but
        where hooks on functions are, or callbacks are called, and each module has a
        hook of its own.
    """

    step: Costs
    link: Costs = Costs(0, 0)


#: The reference core need not be quick.
pytestmark = NATIVE_CORE

EXPECTED = {
    "profile()": Expected(Costs(6, 42)),
    "profile() beside a device": Expected(Costs(28, 42)),
    "profile(memory=True)": Expected(Costs(6, 62)),
    "profile(memory='cuda')": Expected(Costs(6, 65)),
    "profile(functions=True)": Expected(Costs(24, 63)),
    "link timer": Expected(Costs(0, 0)),
    "link timer with backward": Expected(Costs(2, 34)),
    "link timer on each module": Expected(Costs(13, 0), Costs(12, 0)),
    "link callbacks": Expected(Costs(32, 148), Costs(10, 37)),
    "function timer": Expected(Costs(0, 193), Costs(134, 59)),
    "function callbacks": Expected(Costs(0, 193), Costs(108, 34)),
    "profile() in another thread": Expected(Costs(0, 19)),
}


@pytest.fixture(autouse=True)
def comparable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    make_comparable(monkeypatch)
    gc.collect()
    gc.disable()  # what other tests left behind does not die while calls are counted
    yield
    gc.enable()


# Calls and lines

#: These are calls in some versions of Python only.
COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<setcomp>"}

Counts = Counter[str]


def is_ours(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(PACKAGE)


def is_generator(frame: FrameType) -> bool:
    """Whether it is one: versions of Python differ in how they close these."""
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR)


def count_calls(work: Callable[[], object]) -> Counts:
    """Calls into this package, and from it, by the names of what is called."""
    found: Counts = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and is_ours(frame):
            found[argument.__name__] += 1
        if event != "call" or is_generator(frame):
            return
        name = frame.f_code.co_name
        if name not in COMPREHENSIONS and (is_ours(frame) or is_ours(frame.f_back)):
            found[name] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found


def count_lines(work: Callable[[], object]) -> Counts:
    """Lines of this package that are run."""
    found: Counts = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        if not is_ours(frame) or is_generator(frame):
            return None
        if event == "line":
            name = Path(frame.f_code.co_filename).name
            found[f"{name}:{frame.f_lineno}"] += 1
        return note

    run_traced(work, note)
    return found


def count_step(
    case: Case, links: int, count: Callable[[Callable[[], object]], Counts]
) -> tuple[Counts, Counts]:
    """The counts of a forward and of a backward, when all is known already."""
    chain, x = make_chain(case, links), torch.ones(2, requires_grad=True)
    with case.enter(chain):
        run(chain, 49)  # more is done in the first steps, and every now and then
        outputs: list[torch.Tensor] = []
        forward = count(lambda: outputs.append(chain(x)))
        loss = outputs.pop().sum()
        backward = count(loss.backward)
    return forward, backward


def total(counts: Counts) -> int:
    return sum(counts.values())


def listed(*counts: Counts) -> str:
    """All of them, for whoever has to find out what is new."""
    lines = ([f"{n} {name}" for name, n in c.most_common() if n] for c in counts)
    return "\n".join(", ".join(line) for line in lines)


def per_link(short: Counts, long: Counts) -> Counts:
    """What each link of a chain adds."""
    more = Counter(long)
    more.subtract(short)
    links = LONG - SHORT
    assert not {name: n for name, n in more.items() if n % links}
    return Counter({name: n // links for name, n in more.items() if n})


@pytest.mark.parametrize("name", CASES)
def test_calls(name: str) -> None:
    short = count_step(CASES[name], SHORT, count_calls)
    long = count_step(CASES[name], LONG, count_calls)
    links = list(map(per_link, short, long))
    at_most, expected = EXPECTED[name]
    assert Costs(*map(total, links)) == expected, listed(*links)
    rests = [
        Counter({n: calls - SHORT * link[n] for n, calls in counts.items()})
        for counts, link in zip(short, links, strict=True)
    ]
    found = Costs(*map(total, rests))
    is_kept = found.forward <= at_most.forward and found.backward <= at_most.backward
    assert is_kept, f"{found} of a step, but at most {at_most}:\n{listed(*rests)}"


@pytest.mark.parametrize("was_used", [False, True])
def test_nothing_is_called_without_an_active_hook(was_used: bool) -> None:
    chain = make_chain(CASES["profile()"], SHORT)
    if was_used:
        with profile(functions=True), EveryLink(), EveryFunction():
            run(chain, 1)
    assert not count_calls(lambda: run(chain, 1))


#: Calls in a step that is not measured, with one call of a model, one pass and one
#: optimizer, which is all that tells us of it.
CALLS_PER_UNMEASURED_STEP = 45


@pytest.mark.usefixtures("ticking")  # else a step may be the first of its duration
def test_a_step_that_is_not_measured_costs_a_few_calls() -> None:
    """However many modules are called inside of the model."""

    def calls_with(layers: int) -> int:
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
        optimizer = sgd(model)

        def step() -> None:
            model(X).sum().backward()
            optimizer.step()

        with profile(steps=1):
            for _ in range(4):
                step()
            return total(count_calls(step))

    assert calls_with(2) <= CALLS_PER_UNMEASURED_STEP
    assert calls_with(20) == calls_with(2)


LEFT: dict[str, dict[str, Any]] = {
    **OPTIONS,
    "some steps": {"steps": 1, "every": 2},
    "a file": {"save": "profile.json"},
}
QUICK = "some steps", "functions and memory"


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, id=name, marks=() if name in QUICK else THOROUGH)
        for name, options in LEFT.items()
    ],
)
def test_leaving_does_not_take_longer_after_more_steps(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    def leave_after(steps: int) -> Counts:
        model = Net()
        optimizer = sgd(model)
        with ExitStack() as stack:
            stack.enter_context(profile(**options))
            for _ in range(steps):
                model(X).sum().backward()
                optimizer.step()
            return count_lines(stack.close)

    for _ in range(2):  # imports what leaving needs, and what finding a file there does
        leave_after(10)
    # The history of steps has as many stretches after either, and the last one is full.
    few, many = leave_after(601), leave_after(1201)
    assert few
    assert many == few, listed(many - few, few - many)
