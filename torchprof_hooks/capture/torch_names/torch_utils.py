"""Private names of ``torch.utils``: of its checkpoints, loaders and counter of
floating-point operations."""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, dataloader

from torchprof_hooks.capture.torch_names import Canary
from torchprof_hooks.capture.torch_names.compiler import is_compiled_autograd_on
from torchprof_hooks.capture.torch_names.place import Place

# Checkpoints

#: A recomputed forward is left by this exception as soon as torch's non-reentrant
#: checkpoint has what it needs. That is not a failure.
STOPS_RECOMPUTATION: Final = "_StopRecomputationError"


def beginning_of_recomputation() -> Place:
    """The constructor that runs as soon as a node asks for a tensor to be recomputed.
    Where torch has none, the time until the first module is called is the node's."""
    return Place(_of_checkpoints("_recomputation_hook"), "__init__")


def end_of_recomputation() -> Place:
    """The method that checks tensors once all of them are recomputed."""
    return Place(_of_checkpoints("_CheckpointFrame"), "check_recomputed_tensors_match")


def _of_checkpoints(name: str) -> Any:
    return getattr(sys.modules.get("torch.utils.checkpoint"), name, None)


# Loaders


class LoaderMethod(NamedTuple):
    """A method through which a program enters the loading of data.

    find: where it is, or a function that finds out when that is needed.
    gives_batches: whether it returns a batch, rather than an iterator over batches.
    """

    find: Place | Callable[[], Place]
    gives_batches: bool


def _batches() -> Place:
    """``__next__`` of the base class of torch's iterators over loaders. Where there is
    no such class any more, the time spent waiting for batches is outside modules."""
    return _next_of_iterators() if BATCHES.works() else Place(None, "")


def _next_of_iterators() -> Place:
    return Place(getattr(dataloader, "_BaseDataLoaderIter", None), "__next__")


#: All there are: iterators of other libraries call these in turn.
LOADER_METHODS: Final = (
    LoaderMethod(Place(DataLoader, "__iter__"), gives_batches=False),
    LoaderMethod(_batches, gives_batches=True),
)


def _are_batches_from_there() -> bool:
    """Whether iterators over loaders have that ``__next__``, and not one of their own.
    The loader has its own generator, so as not to touch those of the program."""
    loader: DataLoader[int] = DataLoader([0], generator=torch.Generator())  # type: ignore[arg-type]
    method = _next_of_iterators().read()
    return method is not None and method is getattr(type(iter(loader)), "__next__", 0)


BATCHES: Final = Canary(
    "waiting for batches", ("_BaseDataLoaderIter",), _are_batches_from_there
)


# Floating-point operations


class TooManyOperatorsError(RuntimeError):
    """A function calls too many operators to run it again just to count them."""


class FlopMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up, in `flops`, the floating-point operations that this thread does, by the
    formulas that torch has for matrix products, convolutions and attention.

    Torch's ``FlopCounterMode`` does the same, but hooks the modules of all threads to
    do so, and has no limit.

    most_operators: how many operators, with or without a formula, may be called.
    operators: how many were called.
    """

    def __init__(self, most_operators: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.operators = 0
        self._most_operators = most_operators
        self._formulas = flop_formulas()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and hiding from the compiler would load it."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.operators += 1
        if self.operators > self._most_operators:
            raise TooManyOperatorsError
        formula = self._formulas.get(func._overloadpacket)
        if formula is None:
            with self:  # an operator made of others?
                outputs = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if outputs is NotImplemented else outputs
        outputs = func(*args, **kwargs)
        self.flops += int(formula(*args, **kwargs, out_val=outputs))
        return outputs


@cache
def flop_formulas() -> Mapping[Any, Callable[..., int]]:
    """Formulas by operator; empty where torch has none: then nothing is counted."""
    try:
        from torch.utils import flop_counter
    except ImportError:
        return {}
    formulas: dict[Any, Callable[..., int]]
    formulas = getattr(flop_counter, "flop_registry", {})
    aten = torch.ops.aten
    if aten.convolution not in formulas:
        return formulas
    backward = _backward_of_convolution(formulas[aten.convolution])
    # Not a copy: what programs register later is seen as well.
    return ChainMap({aten.convolution_backward: backward}, formulas)


def _backward_of_convolution(forward: Callable[..., int]) -> Callable[..., int]:
    """Each gradient, of the input and of the weight, takes as many products as the
    forward. Torch's own formula is wrong for the weight of a grouped convolution:
    `groups` times too many."""

    def formula(
        gradient: Any, value: Any, weight: Any, *options: Any, out_val: Any = None
    ) -> int:
        *settings, needed = options
        gradients: int = sum(map(bool, needed[:2]))
        return gradients * forward(value, weight, *settings, out_val=gradient)

    return formula


def formula_of(name: str) -> Callable[..., int]:
    """Torch's formula for an operator; KeyError if it has none."""
    return flop_formulas()[getattr(torch.ops.aten, name)]


@cache
def is_pointwise(name: str) -> bool:
    """Whether torch marks this operator as computing each element by itself. One that
    only works in place is found by its name with an underscore."""
    packet = getattr(torch.ops.aten, name, None) or getattr(
        torch.ops.aten, f"{name}_", None
    )
    if packet is None:
        return False
    overloads = (getattr(packet, overload) for overload in packet.overloads())
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)


def is_compiler_loaded() -> bool:
    """Whether torch can compute with tensors without elements at once. It does most of
    that in Python, and first loads its compiler for it, which takes about a second."""
    return "torch._dynamo" in sys.modules and "sympy" in sys.modules


def can_count_flops() -> bool:
    """Whether there are formulas, and backward passes are not compiled at present."""
    return bool(flop_formulas()) and not is_compiled_autograd_on()
