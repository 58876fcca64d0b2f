"""Compiled code is divided among modules as if these had been called: on a clock of the
test's, in each way to compile."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.codecache import PyCodeCache
from torch._inductor.utils import fresh_cache
from torch.utils.checkpoint import checkpoint

from tests.compiled import DIVIDED, Block, Net, Work, during, rows_of, spent, work
from tests.cores import NATIVE_CORE
from tests.documents.test_rules import rules_of
from tests.fake_clock import MS, burn
from tests.helpers import in_thread
from torchprof_hooks import Profile, profile
from torchprof_hooks.instruments.compiled.kernel_map import KernelMap
from torchprof_hooks.instruments.compiled.observer import HOW, marks
from torchprof_hooks.instruments.compiled.places import Places
from torchprof_hooks.instruments.compiled.wrapper import CHANGED, WrapperFunction
from torchprof_hooks.kernel.torch_names import Place
from torchprof_hooks.kernel.torch_names.inductor import (
    NOTICED_IN,
    inductor_entry,
    kernel_notice,
    load_inductor,
    wrapper_maker,
    wrappers,
)
from torchprof_hooks.link_hooks import TimerHook

pytestmark = [
    DIVIDED,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("clock"),
]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That in which this package keeps what it learns."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def caches(folder: Path, fresh_compiler: None) -> Iterator[Path]:
    """The same, with torch's own caches, which are empty."""
    with (
        fresh_cache(),
        torch._inductor.config.patch(fx_graph_cache=True),
        torch._functorch.config.patch(enable_autograd_cache=True),
    ):
        yield folder


@pytest.fixture(autouse=True)
def fresh_compiler(
    folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    monkeypatch.setattr(
        "torchprof_hooks.kernel.native.build._own_folder", lambda: folder
    )
    if "known" not in request.fixturenames:
        forget_compiled()
    with (
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield
    during.clear()
    if "known" not in request.fixturenames:
        forget_compiled()


#: What tests share, and one of its wrappers: compiling takes as long as they do.
_known: list[Any] = []


@pytest.fixture
def known(fresh_compiler: None, clock: None) -> Any:
    """A compiled `Net`, whose kernels are known."""
    if not any(each is _known[1] for each in wrappers() if _known):
        forget_compiled()
        model = compiled(Net())
        trained(model)
        _known[:] = model, wrappers()[0]
    trained(_known[0])  # torch may have forgotten it
    return _known[0]


def forget_compiled() -> None:
    """As a new process would know nothing."""
    torch._dynamo.reset()
    PyCodeCache.cache_clear()


def x(rows: int = 2) -> torch.Tensor:
    return torch.ones(rows, 4, requires_grad=True)


def trained(
    model: Callable[[torch.Tensor], Any], steps: int = 3, rows: int = 2, **options: Any
) -> Profile:
    with profile(**options) as prof:
        for _ in range(steps):
            burn(7)
            model(x(rows)).sum().backward()
    return prof.profile


def compiled(model: nn.Module, **options: Any) -> Any:
    return torch.compile(model, **options)


def in_place(model: nn.Module) -> nn.Module:
    model.compile()
    return model


def blocks_alone(model: Net) -> nn.Module:
    for block in model.blocks:
        block.compile()
    return model


def with_breaks(model: Net) -> Any:
    """Each block leaves the graph between its modules."""

    def hook(module: nn.Module, args: Any) -> None:
        torch._dynamo.graph_break()

    for block in model.blocks:
        assert isinstance(block, Block)
        block.down.register_forward_pre_hook(hook)
    return torch.compile(model)


@pytest.mark.parametrize(
    "way",
    [
        compiled,
        in_place,
        blocks_alone,
        with_breaks,
        lambda model: compiled(model, fullgraph=True, dynamic=True),
    ],
    ids=["compile", "in place", "blocks", "graph breaks", "dynamic"],
)
def test_rows_are_those_of_the_same_model_as_written(way: Any) -> None:
    expected = rows_of(trained(Net()))
    assert expected["Net.blocks.1.down"] == (3, 90, 3, 180, 0, 0)
    found = trained(way(Net()))
    assert rows_of(found) == expected
    assert not found.not_measured


def test_what_is_compiled_later() -> None:
    """For other sizes, and for gradients that are not wanted, in one profile."""
    model, as_written = compiled(Net()), Net()

    def various(model: nn.Module) -> Profile:
        with profile() as prof:
            for rows in (2, 2, 3, 5, 2):
                model(x(rows)).sum().backward()
                with torch.no_grad():
                    model(x(rows))
        return prof.profile

    before = frames()
    assert rows_of(various(model)) == rows_of(various(as_written))
    assert frames()["unique_graphs"] >= before.get("unique_graphs", 0) + 3


class Around(nn.Module):
    """A module around a compiled one."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.work, self.net = Work(4), net

    def forward(self, value: torch.Tensor) -> Any:
        return self.net(self.work(value))


def test_compiled_modules_in_others() -> None:
    inner = Net()
    inner.blocks[1].compile()
    found = rows_of(trained(Around(torch.compile(inner))))
    assert found == rows_of(trained(Around(Net())))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference(mode: Callable[[], AbstractContextManager[None]]) -> None:
    def evaluated(model: nn.Module) -> Profile:
        with profile() as prof, mode():
            for _ in range(3):
                model(torch.ones(2, 4))
        return prof.profile

    found = rows_of(evaluated(compiled(Net())))
    assert found == rows_of(evaluated(Net()))
    assert found["Net.blocks.0.up"] == (3, 3, 0, 0, 0, 0)


def test_a_function_with_model_and_loss() -> None:
    model = Net()

    def loss(value: torch.Tensor) -> Any:
        return work(model(value), 5)

    def rows(function: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
        found = trained(function)
        assert found.wall_ns == 3 * (7 + 3 * (47 + 5)) * MS
        return rows_of(found)

    found = rows(torch.compile(loss))
    assert found == rows(loss)


class Checkpointed(Net):
    def forward(self, value: torch.Tensor) -> Any:
        for block in self.blocks:
            value = checkpoint(block, value, use_reentrant=False)
        return self.head(value)


def test_checkpointing_around_compiled_blocks() -> None:
    found, expected = trained(blocks_alone(Checkpointed())), trained(Checkpointed())
    assert rows_of(found) == rows_of(expected)
    assert rows_of(found)["Checkpointed.blocks.0.down"] == (3, 30, 3, 60, 3, 30)


def test_checkpointing_inside_is_recompute_in_backward_kernels() -> None:
    spent.clear()
    found = rows_of(trained(compiled(Checkpointed())))
    assert found["Checkpointed.blocks.1.up"] == (3, 9, 3, 18, 3, 9)
    assert found["Checkpointed.blocks.1"] == (3, 1.5, 3, 3, 3, 1.5)
    for name, ms in ("blocks.0.up", 1), ("blocks.0.down", 10), ("blocks.1.down", 30):
        numbers = found[f"Checkpointed.{name}"]
        assert numbers[1] + numbers[5] == spent[ms]
    assert spent[1] == 2 * 3 * 1


WORK = "torch.ops.torchprof_hooks_tests.work.default"


def test_compiled_before_the_profile_began() -> None:
    """Nothing is compiled for it; afterwards all is as it was."""
    model = compiled(Net())
    without, graphs = results(model), frames()
    functions = [vars(each)["Runner"].call for each in wrappers()]
    codes = [function.__code__ for function in functions]
    names = [dict(function.__globals__) for function in functions]
    originals = [place.read() for place in in_torch()]
    assert len(codes) == 2
    for _ in range(2):
        with profile() as prof:
            assert all(map(torch.equal, results(model), without))
            assert not {function.__code__ for function in functions} & {*codes}
        assert all(map(operator.is_, codes, (f.__code__ for f in functions)))
        assert names == [function.__globals__ for function in functions]
        assert all(map(operator.is_, originals, (each.read() for each in in_torch())))
        rows = rows_of(prof.profile)
        assert rows[f"Net.{WORK}"] == (1, 47, 0, 0, 0, 0)  # nobody knows whose
        assert set(rows) == {f"Net.{WORK}", WORK_GRADIENT, "Net"}
        assert prof.profile.not_measured == (HOW,)
    assert frames() == graphs
    assert all(map(torch.equal, results(model), without))


WORK_GRADIENT = "Net.torch.ops.torchprof_hooks_tests.gradient.default"


def in_torch() -> list[Place]:
    """What is replaced to learn whose kernels are."""
    load_inductor()
    return [*map(kernel_notice, NOTICED_IN), wrapper_maker(), inductor_entry()]


def frames() -> dict[str, int]:
    """How often torch has compiled something."""
    return dict(torch._dynamo.utils.counters["stats"])


def results(model: Any) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    given = torch.rand(2, 4, requires_grad=True)
    loss = model(given).sum()
    loss.backward()
    assert given.grad is not None
    return loss.detach(), given.grad, torch.rand(3)


def test_a_profile_begins_again(known: Any) -> None:
    expected = rows_of(trained(Net()))
    for _ in range(3):
        found = trained(known)
        assert rows_of(found) == expected
        assert not found.not_measured
        known(x()).sum().backward()


def test_code_from_a_cache_of_torchs(caches: Path) -> None:
    """What a process has learnt while it compiled is known to the next one."""
    expected = rows_of(trained(Net()))
    for hits in range(3):
        forget_compiled()
        marks.put_on()  # as a new process: those of before are forgotten
        if hits == 2:  # and damaged files are as good as none
            for path in (caches / "compiled").iterdir():
                path.write_text('[["cpp", 3]]')
        before = torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"]
        found = trained(compiled(Net()))
        now = torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"]
        assert (now > before) == (hits > 0)
        assert (rows_of(found) == expected) == (hits < 2)
        assert found.not_measured == ((HOW,) if hits == 2 else ())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_the_middle(error: type[BaseException], known: Any) -> None:
    model, expected = known, rows_of(trained(Net()))

    def fail() -> None:
        raise error("in a kernel")

    with profile() as prof:
        during[3] = [fail]
        with pytest.raises(error, match="in a kernel"):
            model(x())
        during.clear()
        for _ in range(3):
            burn(7)
            model(x()).sum().backward()
    found = rows_of(prof.profile)
    assert prof.profile.wall_ns == 3 * (7 + 3 * 47) * MS + (1 + 0.5 + 10 + 3) * MS
    assert found["Net.blocks.0.down"][1] == expected["Net.blocks.0.down"][1] + 10
    assert found["Net.blocks.1.up"][1] == expected["Net.blocks.1.up"][1] + 3
    begun = {"Net", "Net.blocks.0", "Net.blocks.1", "Net.blocks.1.up"}
    begun |= {"Net.blocks.0.up", "Net.blocks.0.down"}
    assert {name for name, row in found.items() if row[0] == 4} == begun
    assert found["Net.head"] == expected["Net.head"]


def test_measuring_ends_in_the_middle(known: Any) -> None:
    model, expected = known, rows_of(trained(known))
    measuring = profile()
    during[3] = [lambda: measuring.__exit__(None, None, None)]
    measuring.__enter__()
    model(x()).sum().backward()
    assert measuring.profile.wall_ns == (1 + 0.5 + 10 + 3) * MS
    assert rows_of(measuring.profile)["Net.blocks.0.down"][1] == 10
    during.clear()
    assert rows_of(trained(model)) == expected


def test_threads_and_several_profiles(known: Any) -> None:
    model, expected = known, rows_of(trained(Net()))
    others: list[Profile] = []
    with profile() as around:
        found = trained(model)
        during[3] = [lambda: in_thread(lambda: others.append(elsewhere()))]

        def elsewhere() -> Profile:
            during.clear()
            return trained(model, steps=1)

        model(x())
    assert rows_of(found) == expected
    (other,) = others
    assert rows_of(other)["Net.head"] == (1, 2, 1, 4, 0, 0)
    of_both = rows_of(around.profile)
    assert of_both["Net.blocks.0.down"] == (4, 40, 3, 60, 0, 0)
    assert of_both["Net.head"] == (4, 8, 3, 12, 0, 0)


@NATIVE_CORE
def test_memory_and_functions_of_modules(known: Any) -> None:
    found = trained(known, memory="cpu", functions=True)
    rows = {row.name: row for row in found.rows()}
    for name in "Net.head", "Net.blocks.1.up":
        assert rows[name].phases["forward"].memory.used_bytes == 3 * 2 * 4 * 4
    called = {row.name: row for row in found.rows("call") if row.kind == "function"}
    head = called["Net.head: torchprof_hooks_tests::work(2x4)"]
    assert (head.calls, head.self_ns) == (3, 3 * 2 * MS)
    expected = trained(Net(), functions=True)
    assert {name for name in called if "work" in name} == {
        row.name for row in expected.rows("call") if "work" in row.name
    }


def test_reports_have_modules_in_compiled_ones(known: Any) -> None:
    lines = trained(known).report().splitlines()
    tree = [line.strip().split("  ")[0] for line in lines]
    start = tree.index("Net [compiled]")
    inside = ["blocks.*: 2 Block", "down: 2 Work", "up: 2 Work", "head: Work"]
    assert tree[start + 1 : start + 5] == inside


class Outer(nn.Module):
    """A kernel of its own, and one inside."""

    def __init__(self, own_ms: float) -> None:
        super().__init__()
        self.inner, self.own_ms = Work(2), own_ms

    def forward(self, value: torch.Tensor) -> Any:
        return self.inner(work(value, self.own_ms))


@pytest.mark.slow
@pytest.mark.parametrize(("own_ms", "is_told"), [(3, True), (1, False)])
def test_advice_on_what_is_around_kernels(own_ms: float, is_told: bool) -> None:
    model = compiled(Outer(own_ms))
    trained(model)
    assert ("around kernels" in rules_of(trained(model))) is is_told


def test_hooks_see_one_call(known: Any) -> None:
    with TimerHook(backward=True) as hook:
        for _ in range(3):
            known(x()).sum().backward()
    times = {"elapsed_time": 3 * 0.047, "backward_time": 6 * 0.047, "occurrence": 3}
    assert hook.summary() == {"Net": pytest.approx(times)}


def test_compiled_autograd_is_compiled_code_outside_of_modules() -> None:
    model = compiled(Net())
    with torch._dynamo.config.patch(compiled_autograd=True):
        trained(model)
        found = trained(model)
    assert rows_of(found)["Net.head"][:2] == (3, 6)
    assert found.wall_ns == 3 * (7 + 3 * 47) * MS


def test_it_does_not_grow_with_steps(known: Any) -> None:
    sizes = []
    with profile():
        for _ in range(3):
            for _ in range(10):
                known(x()).sum().backward()
            (observer,) = marks.users
            sizes.append(len(observer.reading.sites))
    assert sizes == sizes[:1] * 3


def test_it_does_not_grow_with_compilations() -> None:
    """What torch has forgotten goes, also where it makes the same code again."""
    sizes = []
    with profile():
        for _ in range(3):
            forget_compiled()
            for same in compiled(Net()), compiled(Net()):
                same(x()).sum().backward()
            gc.collect()
            kept = [type(each) for each in gc.get_objects()]
            sizes.append(
                [kept.count(kind) for kind in (WrapperFunction, Places, KernelMap)]
            )
    assert sizes[0][0] == 2
    assert sizes == sizes[:1] * 3


def replaced(wrapper: ModuleType) -> None:
    runner = vars(wrapper)["Runner"]
    runner.call = staticmethod(runner.call)


def exchanged(wrapper: ModuleType) -> None:
    """As coverage tools do."""
    call = vars(wrapper)["Runner"].call
    call.__code__ = call.__code__.replace(co_filename="of another tool")


def in_cpp(wrapper: ModuleType) -> None:
    """As a `cpp_wrapper`: its function has no Python code."""
    vars(wrapper).update(Runner=None, call=len)


def removed(wrapper: ModuleType) -> None:
    assert wrapper.__file__
    Path(wrapper.__file__).unlink()


ONE_LINE = {"Net": (3, 3 * 47, 3, 2 * 3 * 47, 0, 0)}


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("change", [replaced, exchanged, in_cpp, removed])
def test_what_others_have_changed_is_one_line(
    change: Callable[[ModuleType], None], is_known: bool
) -> None:
    model = compiled(Net())
    model(x()).sum().backward()
    if is_known:
        trained(model)
    for each in wrappers():
        change(each)
    found = trained(model)
    if is_known and change is not exchanged:  # then the code is still what it was
        assert set(rows_of(found)) == {f"Net.{WORK}", WORK_GRADIENT, "Net"}
        return
    assert rows_of(found) == ONE_LINE
    (reason,) = found.not_measured
    gone = "its file is not there any more"
    assert reason.endswith(f": {gone if change is removed else CHANGED}")


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_other_backends_are_one_line(backend: str) -> None:
    found = trained(torch.compile(Net(), backend=backend))
    assert rows_of(found) == ONE_LINE
    (reason,) = found.not_measured
    assert reason.startswith("not divided among modules: Net [compiled]: it was")


def test_names_that_this_torch_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or that have other parameters than those that are known."""
    name = "set_kernel_post_grad_provenance_tracing"

    def other(schedule: Any, kernel: str) -> None:
        """Of another torch."""

    model = compiled(Net())
    model(x()).sum().backward()
    monkeypatch.setattr(f"torch._inductor.codegen.cpp.{name}", other)
    found = trained(model)
    assert rows_of(found) == ONE_LINE
    (reason,) = found.not_measured
    assert reason.endswith(f"modules: Net [compiled]: torch has no {name}")
