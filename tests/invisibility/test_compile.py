"""torch.compile: no graph break, no warning, one row for a compiled region."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.helpers import Recorder
from torchprof_hooks import LinkHook
from torchprof_hooks.kernel.torch_names import compiler as compiling
from torchprof_hooks.link_hooks import TimerHook

# torch.compile itself warns and deprecates now and then; ours would be UserWarning too,
# so only what names hooks has to stay an error.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error:.*hooks.*:UserWarning"),
    pytest.mark.usefixtures("fresh_compiler"),
]


class Middle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> Any:
        return self.inside(x).relu()


class Outer(nn.Module):
    def __init__(self, middle: Callable[..., Any]) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.middle = middle
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.middle(self.first(x)))


class Compiles:
    """A backend that counts the graphs it is given, and runs them as they are."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward


def run(model: Callable[..., Any], steps: int = 3) -> None:
    for _ in range(steps):
        model(torch.ones(4, 8)).sum().backward()


@pytest.mark.parametrize("compiled_first", [False, True])
@pytest.mark.parametrize("real_backward", [False, True])
def test_compiled_submodule_is_one_region(
    compiled_first: bool, real_backward: bool
) -> None:
    counts = Compiles()
    backend = "aot_eager" if real_backward else counts
    model = Outer(torch.compile(Middle(), backend=backend, fullgraph=True))
    if compiled_first:
        run(model)
    with torchprof_hooks.profile() as prof:
        run(model)
    rows = {row.name: row for row in prof.profile.rows() if row.kind == "module"}
    assert set(rows) == {"Outer", "Outer.first", "Outer.middle", "Outer.last"}
    region = rows["Outer.middle"]
    assert (region.class_name, region.compiled) == ("Middle", True)
    assert region.phases["forward"].calls == 3
    assert region.phases["backward"].calls == 3
    assert region.phases["backward"].self_ns > 0
    assert counts.graphs == (not real_backward)
    run(model)
    assert counts.graphs <= 2  # at most one recompilation


@pytest.mark.parametrize(
    "hook",
    [TimerHook, lambda: TimerHook(backward=True), Recorder, None],
    ids=["timer", "timer with backward", "callbacks", "on a module inside"],
)
def test_hooks_do_not_break_the_graph(hook: Callable[[], LinkHook] | None) -> None:
    backend, inner = Compiles(), Middle()
    if hook is None:
        torchprof_hooks.add_hook(inner, TimerHook())
    model = torch.compile(Outer(inner), backend=backend, fullgraph=True)
    with nullcontext() if hook is None else hook():
        run(model)
    if hook is None:
        torchprof_hooks.delete_hook(inner, "TimerHook")
    assert backend.graphs == 1


def test_callbacks_see_a_region_as_one_module() -> None:
    model = Outer(torch.compile(Middle(), backend="aot_eager", fullgraph=True))
    with Recorder() as hook:
        run(model, steps=1)
    seen = "Outer", "Outer.first", "Outer.middle", "Outer.last"
    assert [e for e in hook.events if e.startswith("pre")] == [f"pre {s}" for s in seen]
    ended = {e for e in hook.events if e.startswith("backward post")}
    assert ended == {f"backward post {s}" for s in seen}


def test_compiled_function_belongs_to_the_module_that_calls_it() -> None:
    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.function = torch.compile(torch.sin, backend="aot_eager")

        def forward(self, x: torch.Tensor) -> Any:
            return self.function(self.linear(x))

    with torchprof_hooks.profile() as prof:
        run(Calls())
    rows = {row.name: row for row in prof.profile.rows()}
    assert rows["Calls"].phases["backward"].calls == 3


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_one_row(in_place: bool) -> None:
    model: Any = Outer(Middle())
    if in_place:
        model.compile(backend="aot_eager", fullgraph=True)
    else:
        model = torch.compile(model, backend="aot_eager")
    with torchprof_hooks.profile() as prof:
        run(model)
    rows = prof.profile.rows()
    (row,) = [row for row in rows if row.kind == "module"]
    assert (row.name, row.compiled, row.calls) == ("Outer", True, 3)
    assert sum(row.self_ns for row in rows) == prof.profile.wall_ns


def test_optimizer_step_inside_a_compiled_function() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    with torchprof_hooks.profile():
        for _ in range(2):
            model(torch.ones(4)).sum().backward()
            step()


class ImportsAnother(str):
    """The name of a module: whoever looks at it is not alone."""

    def startswith(self, *given: Any) -> bool:
        sys.modules[f"imported_{len(sys.modules)}"] = sys
        return super().startswith(*given)


def test_another_thread_may_import_modules_while_a_profile_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "is_compiler_loaded", lambda: True)
    monkeypatch.setattr(compiling, "_modules_searched", 0)
    monkeypatch.setitem(sys.modules, ImportsAnother("looked_at"), sys)
    before = set(sys.modules)
    try:
        with torchprof_hooks.profile():
            pass
    finally:
        for name in sys.modules.keys() - before:
            del sys.modules[name]
