"""Whether private names of torch are there and do what they are needed for.

Tests ask, with each version of torch. On a version that was not tried, this package
asks once, when its core is first loaded there (see `kernel/native/verify.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import Any, Final, NamedTuple

import torch
from torch import autograd
from torch.autograd import Function
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from torchprof_hooks.files.collector import without_collections
from torchprof_hooks.kernel.torch_names.autograd import (
    current_autograd_node,
    current_graph_task,
    engine_entry,
    next_sequence_number,
    node_of,
    sequence_number,
)
from torchprof_hooks.kernel.torch_names.checkpoints_and_loaders import next_batch
from torchprof_hooks.kernel.torch_names.distributed import (
    collectives,
    functional_wait,
    group_maker,
    prepare_for_backward,
    wait_method,
)
from torchprof_hooks.kernel.torch_names.functions import (
    FunctionApplications,
    function_modes,
    push_function_mode,
    remove_function_mode,
)
from torchprof_hooks.kernel.torch_names.modules import (
    ASKING,
    IMPLEMENTATION,
    is_asking,
)
from torchprof_hooks.kernel.torch_names.tensors import storage_of
from torchprof_hooks.measure.uninterrupted import in_own_thread


class Canary(NamedTuple):
    """Says whether something of torch's that is not public is there and works.

    what: what may be wrong without it.
    names: the private names.
    check: tries the names; returns whether they do what is needed. Raising means no.
    """

    what: str
    names: tuple[str, ...]
    check: Callable[[], bool]

    def works(self) -> bool:
        """Whether it works, on this torch. It is tried in a thread of its own, so that
        the program does not notice: that thread has no modes or transforms, gradients
        are enabled, and it has its own counter of autograd nodes."""
        answers = []

        def ask() -> None:
            with suppress(Exception):  # whatever an untried version of torch raises
                answers.append(self.check())

        # A finalizer that ran in that thread might wait for a lock of this thread.
        with without_collections():
            in_own_thread(ask)
        return any(answers)


# Calls of modules


def _asks_for_implementation() -> bool:
    """Whether torch, and no other code, asks a module for something to call in place of
    its own implementation, and calls it."""
    given: list[Any] = []

    def implementation(module: Any) -> Callable[[int], None]:
        given.append(is_asking(sys._getframe(1)))
        return given.append

    class Probe(torch.nn.Module):
        _compiled_call_impl = property(implementation)

    Probe()(0)
    return all(given[:-1]) and given[-1] == 0


# Backward passes


def _follows_passes() -> bool:
    """Whether a node has its number, the entry of the engine can be replaced, and
    which node runs is known."""
    leaf = torch.ones(1, device="cpu", requires_grad=True)
    low = next_sequence_number()
    output = leaf * 2
    node, high = node_of(output), next_sequence_number()
    given: list[Any] = []
    node.register_prehook(
        lambda _: given.append(sequence_number(current_autograd_node()))
    )
    _run_through_entry(output, leaf, given)
    return bool(low < high and given == ["entry", low])


def _run_through_entry(output: Any, leaf: Any, given: list[Any]) -> None:
    place, thread = engine_entry(), get_ident()
    original: Any = place.read()

    def entry(*args: Any, **kwargs: Any) -> Any:
        if get_ident() == thread:
            given.append("entry")
        return original(*args, **kwargs)

    place.write(entry)
    try:
        autograd.grad((output,), (leaf,))
    finally:
        if place.read() is entry:
            place.write(original)


def _knows_running_pass() -> bool:
    leaf = torch.ones(1, device="cpu", requires_grad=True)
    output = leaf * 2
    given: list[int] = []
    node_of(output).register_prehook(lambda _: given.append(current_graph_task()))
    autograd.grad((output,), (leaf,))
    return current_graph_task() == -1 and len(given) == 1 and given[0] != -1


# Functions


def _sees_functions() -> bool:
    given: list[Any] = []

    class Notes(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given.append(func)
            return func(*args, **(kwargs or {}))

    value, mode = torch.ones(1, device="cpu"), Notes()
    push_function_mode(mode)
    try:
        is_there = function_modes() == [mode]
        torch.relu(value)
    finally:
        remove_function_mode(mode)
    torch.relu(value)
    return is_there and given == [torch.relu] and not function_modes()


def _sees_applications() -> bool:
    """Whether an application is noticed exactly once, however ``apply`` was looked
    up."""
    given: list[str] = []

    class Applied(Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            given.append("forward")
            return value.clone()

    def around(cls: Any, run: Any) -> Any:
        if cls is Applied:
            given.append("around")
        return run

    def apply(value: torch.Tensor) -> None:
        kept: Any = Applied.apply
        kept(value)

    value = torch.ones(1, device="cpu")
    applications = FunctionApplications(around)
    applications.start()
    try:
        apply(value)
    finally:
        applications.stop()
    apply(value)
    return given == ["around", "forward", "forward"]


# Others


def _are_batches_from_there() -> bool:
    """Whether iterators over loaders have that ``__next__``, and not one of their own.
    The loader on trial has a generator of its own, so as not to touch the program's."""
    loader: DataLoader[int] = DataLoader([0], generator=torch.Generator())  # type: ignore[arg-type]
    method = next_batch().read()
    return method is not None and method is getattr(type(iter(loader)), "__next__", 0)


def _are_in_their_places() -> bool:
    """Whether the functions are there. It does not try them: in a process without a
    group, none can be called."""
    places = group_maker(), wait_method(), functional_wait(), prepare_for_backward()
    found = {name for name, place in collectives() if place.read() is not None}
    return all(place.read() is not None for place in places) and found.issuperset(
        ("all_reduce", "all_gather", "broadcast", "barrier", "recv")
    )


def _has_addresses() -> bool:
    """Whether two views have one address, which is not that of another tensor."""
    one, other = torch.zeros(2), torch.zeros(2)
    return storage_of(one) == storage_of(one[:1]) not in (0, storage_of(other))


#: Those without which numbers may be wrong. Tests ask more (``tests/invisibility``).
CANARIES: Final = (
    Canary("calls of modules", (IMPLEMENTATION, ASKING), _asks_for_implementation),
    Canary(
        "backward passes",
        (
            "_get_sequence_nr",
            "_sequence_nr",
            "_current_autograd_node",
            "_engine_run_backward",
        ),
        _follows_passes,
    ),
    Canary(
        "recomputation in threads of devices",
        ("_current_graph_task_id",),
        _knows_running_pass,
    ),
    Canary(
        "functions with callbacks",
        (
            "_len_torch_function_stack",
            "_push_on_torch_function_stack",
            "_pop_torch_function_stack",
            "_get_function_stack_at",
        ),
        _sees_functions,
    ),
    Canary(
        "custom autograd Functions", ("_SingleLevelFunction.apply",), _sees_applications
    ),
    Canary("waiting for batches", ("_BaseDataLoaderIter",), _are_batches_from_there),
    Canary(
        "communication",
        ("distributed_c10d", "Reducer", "_c10d_functional", "Work"),
        _are_in_their_places,
    ),
    Canary("what memory is", ("UntypedStorage._cdata",), _has_addresses),
)


def findings() -> tuple[str, ...]:
    """A line for each canary that does not work."""
    return tuple(
        f"{canary.what}: torch does something else by {', '.join(canary.names)}"
        for canary in CANARIES
        if not canary.works()
    )
