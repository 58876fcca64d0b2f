"""Python's full collections of garbage, wherever they happen to begin."""

from __future__ import annotations

import gc
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from sys import getswitchinterval, setswitchinterval
from typing import Any

import pytest
import torch
from torch import nn

from tests.cost.loops import followed
from tests.cost.loops import train as train_for
from tests.doing import Does, DoesInBackward, X, at_the_end
from tests.exact import own_ms
from tests.fake_clock import MS, burn
from tests.helpers import in_thread
from tests.planted import Work
from tests.running import python, written
from torchprof_hooks import profile
from torchprof_hooks.instruments import garbage
from torchprof_hooks.kernel.attachments import attachments
from torchprof_hooks.kernel.make_tracker import new_tracker
from torchprof_hooks.kernel.module_names import ModuleNames
from torchprof_hooks.kernel.passes import BackwardPass
from torchprof_hooks.kernel.steps import StepDetector
from torchprof_hooks.kernel.tree import CallTree
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import GARBAGE_NAME, OUTSIDE_NAME

pytestmark = pytest.mark.usefixtures("no_monitor_of_tqdm", "clock")


@pytest.fixture
def no_monitor_of_tqdm() -> None:
    """The compiler has tqdm show how far it is, which leaves a thread that looks after
    bars. The reference core sees no collections beside other threads before Python
    3.12."""
    bars: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)
    monitor = getattr(bars, "monitor", None)
    if monitor is not None:
        monitor.exit()
        bars.monitor = None


TAKES_MS = 40


@contextmanager
def long_collections(more_ms: float = 0) -> Iterator[None]:
    """Those of all objects take `TAKES_MS`, and each takes so much longer than the
    one before; no other collections come in between."""
    takes_ms = count(TAKES_MS, more_ms)

    def take_long(moment: str, about: dict[str, Any]) -> None:
        if moment == "start" and about["generation"] == 2:
            burn(next(takes_ms))

    was_enabled = gc.isenabled()
    gc.disable()
    gc.callbacks.append(take_long)
    try:
        yield
    finally:
        gc.callbacks.remove(take_long)
        if was_enabled:
            gc.enable()


class Collects(nn.Module):
    """Collects garbage in the middle of some work."""

    def __init__(self, inner: nn.Module, generation: int = 2) -> None:
        super().__init__()
        self.inner, self.generation = inner, generation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        burn(1)
        gc.collect(self.generation)
        y: torch.Tensor = self.inner(x)
        return y


def check(found: ProfileData) -> None:
    """Times add up, and none is below zero."""
    times_ns = [totals.self_ns for totals in found.cells.values()]
    assert sum(times_ns) == found.wall_ns
    assert min(times_ns) >= 0


def test_collections_are_nobodys_time() -> None:
    def collect() -> None:
        burn(3)
        gc.collect()

    model = Collects(Collects(Work(2, 5)))
    with profile() as prof, long_collections():
        DoesInBackward.apply(model(X), collect).sum().backward()
        burn(7)
        gc.collect()
    found = prof.profile
    check(found)
    assert own_ms(found) == {
        ("Collects", "forward"): 1,
        ("Collects.inner", "forward"): 1,
        ("Collects.inner.inner", "forward"): 2,
        ("Collects.inner.inner", "backward"): 5,
        ("(backward outside modules)", "backward"): 3,
        (OUTSIDE_NAME, "outside"): 7,
        (GARBAGE_NAME, "garbage"): 4 * TAKES_MS,
    }
    totals = found.cells[(GARBAGE_NAME,), "garbage"]
    assert (totals.calls, totals.min_ns, totals.max_ns, totals.duration_ns) == (
        *(4, TAKES_MS * MS, TAKES_MS * MS, 4 * TAKES_MS * MS),
    )
    assert found.phase_times_ns()["garbage"] == 4 * TAKES_MS * MS
    assert "garbage collection" in prof.report()


def collecting_first(
    owner: Any, name: str, patch: pytest.MonkeyPatch, times: int = 99
) -> None:
    """Garbage is looked for at the begin of each such call, or of the first ones."""
    call, due = vars(owner)[name], [gc.collect] * times

    def collecting(*args: Any, **kwargs: Any) -> Any:
        if due:
            due.pop()()
        return call(*args, **kwargs)

    patch.setattr(owner, name, collecting)


#: What is called at the begin of a pass, in their order.
FUNCTIONS = {
    "torch asks": (torch.autograd, "_make_grads"),
    "it is entered": (torch.autograd, "_engine_run_backward"),
}


@pytest.mark.parametrize("options", [{}, {"functions": True}], ids=["", "functions"])
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in a call"])
@pytest.mark.parametrize("where", [*FUNCTIONS, "ends"])
def test_collections_around_a_pass_are_nobodys_time(
    where: str, inside: bool, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where in FUNCTIONS:
        collecting_first(*FUNCTIONS[where], monkeypatch)
    work = Work(2, 5)

    def step() -> None:
        x = X.clone().requires_grad_()
        if where == "ends":
            at_the_end(x, gc.collect)
        work(x).sum().backward()

    model = Does(step)
    with profile(**options) as prof, long_collections():
        for _ in range(3):  # the first one begins and ends step by step
            (partial(model, X) if inside else step)()
            burn(50)
    found = prof.profile
    check(found)
    expected_ms = {"outside": 50, "forward": 2, "backward": 5, "garbage": TAKES_MS}
    times_ns = {phase: ns for phase, ns in found.phase_times_ns().items() if ns}
    assert times_ns == {phase: 3 * ms * MS for phase, ms in expected_ms.items()}
    assert found.overhead_ns < MS


#: Where it may happen that we are at work, and what has us be there.
OURS: dict[str, tuple[Any, str, Callable[[Any], object]]] = {
    "at a new module": (ModuleNames, "get", lambda _: nn.Identity()(X)),
    "before a pass": (BackwardPass, "__init__", lambda _: Work()(X).sum().backward()),
    "before an optimizer's step": (
        CallTree,
        "interruption_site",
        lambda sgd: sgd.step(),
    ),
    "after it": (StepDetector, "optimizer_stepped", lambda sgd: sgd.step()),
}


@pytest.mark.parametrize(("owner", "name", "work"), OURS.values(), ids=OURS)
def test_while_we_are_at_work_it_is_garbage_as_well(
    owner: Any,
    name: str,
    work: Callable[[Any], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)])
    with profile() as prof, long_collections():
        work(optimizer)  # finds its place
        collecting_first(owner, name, monkeypatch, times=1)
        work(optimizer)
    assert own_ms(prof.profile)[GARBAGE_NAME, "garbage"] == TAKES_MS
    check(prof.profile)


def test_the_first_step_has_its_own() -> None:
    with profile() as prof, long_collections():
        train_for(Collects(nn.Linear(4, 1)), 3)
    found = prof.profile
    assert found.phase_times_ns()["garbage"] == 3 * TAKES_MS * MS
    assert found.start_up.phase_times_ns()["garbage"] == TAKES_MS * MS


@pytest.mark.parametrize("generation", [0, 1])
def test_what_young_objects_take_is_the_time_of_whoever_makes_them(
    generation: int,
) -> None:
    with profile() as prof, long_collections():
        Collects(Work(2, 5), generation)(X)
    assert GARBAGE_NAME not in prof.profile.modules


def test_collections_in_other_threads_are_not_in_this_ones_time() -> None:
    with profile() as prof, long_collections():
        in_thread(lambda: gc.collect() and None)
    assert GARBAGE_NAME not in prof.profile.modules


#: Threads keep the program's function, and it the profiler, until modules are emptied.
NEVER_LEFT = """
import threading
import torch
import torchprof_hooks

profiler = None
started = threading.Thread.run
def run(self): started(self) or profiler
threading.Thread.run = run
profiler = None
profiler = torchprof_hooks.profile()
profiler.__enter__()
"""


@pytest.mark.slow
def test_a_program_may_end_in_the_middle(tmp_path: Path) -> None:
    done = python(written(tmp_path, NEVER_LEFT), fresh=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_collected_between_steps_is_garbage_as_well() -> None:
    between: list[Callable[[], object]] = [gc.collect]
    with followed() as steps, long_collections():
        steps.at_step = lambda _: bool(between and between.pop()() and False)
        model = Collects(nn.Linear(4, 4))
        train_for(model, 6)
        found = steps.profile()
    totals = found.cells[(GARBAGE_NAME,), "garbage"]
    assert (totals.calls, totals.self_ns) == (7, 7 * TAKES_MS * MS)
    check(found)


def test_no_other_thread_comes_in_while_torch_goes_through_its_hooks() -> None:
    hooks = OrderedDict.fromkeys(range(5))
    changing, kept, errors = threading.Event(), [], []

    def go_through() -> None:
        try:
            while not changing.is_set():
                kept.append((*hooks.items(),))  # new objects each time: collections
        except RuntimeError as error:  # mutated during iteration
            errors.append(error)

    others, threshold = gc.callbacks[:], gc.get_threshold()
    interval = getswitchinterval()
    gc.callbacks.clear()  # those of tests' libraries are functions of Python's
    gc.set_threshold(1, 1000, 1000)
    setswitchinterval(1e-6)
    thread = threading.Thread(target=go_through)
    user = garbage.Garbage()
    tracker = new_tracker(observers=[user])
    try:
        gc.enable()
        thread.start()
        attachments.attach(garbage.garbage_callback, user)
        while len(kept) < 5000 and not errors:
            hooks[5] = None
            del hooks[5]
    finally:
        gc.disable()
        attachments.detach(garbage.garbage_callback, user)
        gc.callbacks.extend(others)
        gc.set_threshold(*threshold)
        setswitchinterval(interval)
        changing.set()
        thread.join()
    assert kept
    assert not errors
    del tracker
