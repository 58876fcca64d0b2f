"""Modules and programs that a profiler does not expect."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.cores import NATIVE_CORE
from tests.thorough import THOROUGH
from torchprof_hooks import LinkHook
from torchprof_hooks.instruments.kernels import device_tracer
from torchprof_hooks.kernel.torch_names.distributed import data_bytes
from torchprof_hooks.kernel.torch_names.functions import shapes_of
from torchprof_hooks.kernel.torch_names.tensors import tensors_in
from torchprof_hooks.link_hooks import TimerHook

X = torch.ones(3, requires_grad=True)

#: All that `profile` measures of calls.
OPTIONS = pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            dict.fromkeys(chosen, True),
            id=" ".join(chosen),
            marks=[
                *([NATIVE_CORE] if chosen else []),
                *([] if len(chosen) in (0, 3) else [THOROUGH]),
            ],
        )
        for chosen in (
            [],
            ["functions"],
            ["memory"],
            ["functions", "memory"],
            ["kernels"],
            ["functions", "memory", "kernels"],
        )
    ],
)


class Returns(nn.Module):
    """Makes a node and returns what it was given to return."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.outputs = (output,)  # torch asks attributes for their class

    def forward(self, x: torch.Tensor, odd: Any = None) -> Any:
        x * 2
        return self.outputs[0]


def test_view_whose_node_torch_refuses_to_tell() -> None:
    class Views(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            y = x * 1
            with torch.no_grad():
                view = y[0]
            y.mul_(2)
            return view, y

    with torchprof_hooks.profile():
        Views()(X)[1].sum().backward()


class Lazy(Mapping[str, torch.Tensor]):
    """A mapping that makes its values when it is asked for them."""

    def __getitem__(self, key: str) -> torch.Tensor:
        raise AssertionError("was asked for a value")

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("was asked for its keys")

    def __len__(self) -> int:
        raise AssertionError("was asked for its length")

    def values(self) -> Any:
        raise AssertionError("was asked for its values")


class LazyDict(Lazy, dict[str, torch.Tensor]):
    """The same, derived from dict."""


class LazyList(list[torch.Tensor]):
    """A list that makes its items when it is asked for them."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        raise AssertionError("was asked for its items")

    def __getitem__(self, place: Any) -> Any:
        raise AssertionError("was asked for an item")

    __len__ = __getitem__  # type: ignore[assignment]


class Asked(torch.Tensor):
    """A tensor that is made of others, and refuses to say of which."""

    def __tensor_flatten__(self) -> Any:
        raise AssertionError("was asked for its parts")

    @classmethod
    def __tensor_unflatten__(cls, *parts: Any) -> Any:
        raise AssertionError("was made of parts")

    @property
    def layout(self) -> Any:  # type: ignore[override]
        raise AssertionError("was asked for its layout")

    def untyped_storage(self) -> Any:
        raise AssertionError("was asked for its storage")


def contains_itself(kind: str) -> Any:
    many: list[Any] = []
    one: dict[str, Any] = {"more": many}
    many.extend([many, one, many])
    return many if kind == "list" else one


def deep() -> Any:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


class Pretends:
    """Says that it is of another class, as proxies do, or refuses to say it."""

    def __init__(self, kind: type | None) -> None:
        self.kind = kind

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        if self.kind is None:
            raise LookupError("was asked for its class")
        return self.kind


@dataclasses.dataclass
class Guarded:
    """A dataclass that refuses to be looked into."""

    value: int = 1

    def __getattribute__(self, name: str) -> Any:
        raise LookupError("was asked for its attributes")


KINDS = (tuple, list, dict, torch.Tensor)
#: By what makes them: pytest asks what it is given for its class.
PRETENDING: dict[str, Callable[[], Any]] = {
    **{f"mock of a {kind.__name__}": partial(Mock, spec=kind) for kind in KINDS},
    **{f"proxy of {kind}": partial(Pretends, kind) for kind in (*KINDS, Guarded, None)},
    "guarded": partial(object.__new__, Guarded),
    "lazy mapping": Lazy,
}
ODD = {
    **PRETENDING,
    "lazy dict": LazyDict,
    "lazy list": LazyList,
    "list that contains itself": partial(contains_itself, "list"),
    "dict that contains itself": partial(contains_itself, "dict"),
    "deep": deep,
    "tensor of a class of the user's": lambda: torch.ones(2).as_subclass(Asked),
}


@pytest.mark.usefixtures("no_optimizer")
@OPTIONS
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_inputs_and_outputs_are_not_looked_into(
    make: Callable[[], Any],
    nested: bool,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the first steps, of which memory is recorded block by block, in the third and
    fourth one, which may be traced, and in others."""
    monkeypatch.setattr(device_tracer, "accelerator_in_use", lambda: "a device")
    odd = [make()] if nested else make()
    model = Returns(odd)
    with torchprof_hooks.profile(**options) as prof:
        for _ in range(5):
            model(X)
            model(x=X, odd=odd)
            (X * 1).sum().backward()
    measured = 2 * (3 if options.get("kernels") else 5)
    assert {row.name: row.calls for row in prof.profile.rows()}["Returns"] == measured


@pytest.mark.parametrize("make", PRETENDING.values(), ids=PRETENDING)
def test_inputs_of_functions_are_not_asked_for_their_class(
    make: Callable[[], Any],
) -> None:
    values = [make(), X]
    found = tensors_in(values)
    assert [id(tensor) for tensor in found] == [id(X)]
    assert shapes_of(found) == (X.shape,)
    assert data_bytes(values) == X.nbytes


def test_tensors_are_found_in_tuples_lists_and_dicts() -> None:
    tensors = [torch.ones(size) for size in range(5)]
    pair = torch.max(torch.ones(2, 2), 0)
    values = [tensors[0], {"a": tensors[1], "b": [tensors[2]]}, pair, {4: tensors[4]}]
    found = [*map(id, tensors[:3]), *map(id, pair), id(tensors[4])]
    assert [*map(id, tensors_in(values))] == found
    assert not tensors_in([deep(), contains_itself("list"), contains_itself("dict")])
    assert 100 < len(tensors_in([[tensors] * 10_000])) < 2000  # the first ones


def test_module_that_answers_to_every_name() -> None:
    class Obliging(nn.Module):
        def __getattr__(self, name: str) -> Any:
            return 3

        def forward(self, x: torch.Tensor) -> Any:
            return x * 2

    with torchprof_hooks.profile() as prof:
        Obliging()(X)
    assert "Obliging" in {row.name for row in prof.profile.rows("class")}


def test_hooks_added_and_deleted_do_not_add_sites() -> None:
    model = nn.ReLU()
    with TimerHook() as timer:
        for _ in range(50):
            torchprof_hooks.add_hook(model, LinkHook())
            model(X)
            torchprof_hooks.delete_hook(model, "LinkHook")
    assert timer.summary()["ReLU"]["occurrence"] == 50
    subscription: Any = timer._here.subscription
    assert len(subscription.tracker.sites) < 5


def test_a_hook_renamed_while_it_is_active_can_still_be_left() -> None:
    with LinkHook() as hook:
        hook.name = "other"


def generator() -> Iterator[int]:
    yield 1


async def coroutine() -> None: ...


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (nn.Linear, "function must be a plain function .*for a class .*`@profiled`"),
        (None, "function must be a plain function"),
        ("step", "function must be a plain function"),
        (generator, "inside of them"),
        (coroutine, "inside of them"),
    ],
    ids=["class", "None", "name", "generator", "coroutine"],
)
def test_only_functions_can_be_decorated(wrong: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        torchprof_hooks.profile()(wrong)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_a_signal_handler_may_read_the_profile() -> None:
    model = nn.Identity()
    reads: list[int] = []
    with torchprof_hooks.profile() as prof:
        previous = signal.signal(
            signal.SIGALRM, lambda *_: reads.append(prof.profile.wall_ns)
        )
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        try:
            while len(reads) < 20:
                model(1)
                prof.profile  # noqa: B018
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
    assert len(reads) >= 20
