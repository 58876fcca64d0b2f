"""Runs of torch's own samples, each from the same inputs and the same random state."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.invisible import MEASURERS, exact
from tests.thorough import IS_THOROUGH, some_ways


def database(name: str) -> Any:
    """A module of torch with samples. What importing it changes is changed back: it
    forbids to set the flags of backends, and wraps the calls of scripted functions."""
    script: tuple[Any, ...] = torch._C.ScriptFunction, torch._C.ScriptMethod
    calls = [vars(kind)["__call__"] for kind in script]
    found = pytest.importorskip(
        f"torch.testing._internal.{name}",
        reason="torch's samples need expecttest, of the extra `test`",
    )
    flags = torch.backends.flags_frozen.__globals__
    flags["__allow_nonbracketed_mutation_flag"] = True
    for kind, call in zip(script, calls, strict=True):
        kind.__call__ = call
    return found


@dataclass(frozen=True)
class Case:
    """Something to run.

    make: gives the function, which may be a module, anew for each run.
    args, kwargs: what it is called with; it may overwrite them.
    mode: context to call it in.
    twice: whether to differentiate the gradients, too.
    comparable: False if the output depends on what happened to be in the memory.
    """

    what: str
    make: Callable[[], Callable[..., Any]]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    mode: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    twice: bool = False
    comparable: bool = True


class Run:
    """One run of a `Case`, on copies of its arguments: forward, then backward through
    everything that it returned."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.args, self.kwargs = copied((case.args, dict(case.kwargs)))
        self.function: Callable[..., Any] | None = None
        self.output: Any = None
        self.gradients: Any = None
        self.error: Exception | None = None
        self.random_state: torch.Tensor | None = None

    def whole(self) -> None:
        torch.default_generator.manual_seed(0)  # torch.manual_seed() takes a while
        self.forward()
        self.backward()
        self.random_state = torch.get_rng_state()

    def forward(self) -> None:
        with self._noting_errors():
            self.function = self.case.make()
            with self.case.mode():
                self.output = self.function(*self.args, **self.kwargs)

    def backward(self) -> None:
        """Nothing, if there is nothing to differentiate."""
        with self._noting_errors():
            roots = differentiable(self.output)
            if roots and self.case.twice:
                self._differentiate_twice(roots)
            elif roots:
                torch.autograd.backward(roots, [gradient_for(root) for root in roots])

    def outcome(self) -> dict[str, Any]:
        """All that the run left behind, for comparison."""
        bits = self.case.comparable
        touched = tensors((self.args, self.kwargs))
        if isinstance(self.function, torch.nn.Module):
            touched += [*self.function.parameters(), *self.function.buffers()]
        return {
            "error": exact(self.error),
            "output": exact(self.output, bits),
            "arguments and state": exact(touched, bits),
            "gradients": exact([t.grad for t in touched if t.is_leaf], bits),
            "gradients kept": exact(self.gradients, bits),
            "random state": exact(self.random_state),
        }

    def _differentiate_twice(self, roots: list[torch.Tensor]) -> None:
        leaves = differentiable((self.args, self.kwargs))
        self.gradients = torch.autograd.grad(
            roots,
            leaves,
            [gradient_for(root) for root in roots],
            create_graph=True,
            allow_unused=True,
        )
        roots = differentiable(self.gradients)
        if roots:
            torch.autograd.backward(roots, [gradient_for(root) for root in roots])

    @contextlib.contextmanager
    def _noting_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # an outcome like others
            self.error = error.with_traceback(None)


#: All at once, and how many of the others come in turns (see `tests.thorough`).
_ALWAYS, _IN_TURNS = "several", 1


def measurers_for(number: int) -> Sequence[str]:
    """Those that run the samples of that number in the database."""
    others = [name for name in MEASURERS if name != _ALWAYS]
    return [_ALWAYS, *some_ways(others, number, _IN_TURNS)]


def differences(cases: Sequence[Case], number: int) -> dict[str, list[str]]:
    """What measurers change, of those that change anything: parts of cases, and new
    warnings. (Torch gives many of its warnings only once: some that are expected are
    missing.) The cases are those of that number in the database."""
    expected, usual = run(cases, contextlib.nullcontext())
    changed: dict[str, list[str]] = {}
    for name in measurers_for(number):
        found, warned = run(cases, MEASURERS[name]())
        changed[name] = [
            f"{part} of {what}"
            for what, outcome in found.items()
            for part in outcome
            if outcome[part] != expected[what][part]
        ] + sorted(warned - usual)
    return {name: parts for name, parts in changed.items() if parts}


def run(
    cases: Sequence[Case], measuring: AbstractContextManager[Any]
) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """What comes of the cases, one after the other within `measuring`, and the warnings
    on the way."""
    runs = [Run(case) for case in cases]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with measuring:
            for one in runs:
                one.whole()
    texts = {f"{warning.category.__name__}: {warning.message}" for warning in caught}
    return {one.case.what: one.outcome() for one in runs}, texts


def some_of(samples: Sequence[Any]) -> Sequence[Any]:
    """The first few, and up to as many spread evenly over the rest: samples of one kind
    stand next to each other."""
    count = 6 if IS_THOROUGH else 2
    rest = samples[count:]
    return [*samples[:count], *rest[:: len(rest) // count + 1]]


def copied(tree: Any) -> Any:
    """The same with leaf tensors of its own; what is in it twice stays one."""
    copies: dict[int, Any] = {}

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and id(leaf) not in copies:
            clone = leaf.detach().clone().requires_grad_(leaf.requires_grad)
            copies[id(leaf)] = clone
        if isinstance(leaf, torch.Generator) and id(leaf) not in copies:
            copies[id(leaf)] = leaf.clone_state()
        return copies.get(id(leaf), leaf)

    return pytree.tree_map(copy, tree)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def differentiable(tree: Any) -> list[torch.Tensor]:
    return [tensor for tensor in tensors(tree) if tensor.requires_grad]


def gradient_for(output: torch.Tensor) -> torch.Tensor:
    """A gradient whose elements differ."""
    ramp = torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype)
    return ramp.reshape(output.shape)
