"""Every operator that torch has samples of does the same, measured and not."""

from __future__ import annotations

import contextlib
import itertools
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.invisibility.databases.samples import (
    Case,
    Run,
    database,
    differences,
    differentiable,
    some_of,
    tensors,
)
from tests.thorough import in_turns
from torchprof_hooks import FunctionHook

OPERATORS = {
    operator.formatted_name: operator
    for operator in database("common_methods_invocations").op_db
}


def cases_of(operator: Any) -> Iterator[Case]:
    """Some samples; the first one in each other way to call the operator; two of each
    sparse layout, a complex one, and three that raise."""
    samples = list(samples_of(operator, dtype_of(operator)))
    for number, sample in enumerate(some_of(samples)):
        yield case(f"sample {number}", operator, sample)
    first = case("", operator, samples[0])
    for what, function in variants_of(operator):
        yield replace(first, what=what, make=always(function))
    yield replace(first, what="without grad", mode=torch.no_grad)
    yield replace(first, what="in inference mode", mode=torch.inference_mode)
    if operator.supports_gradgrad:
        yield replace(first, what="double backward", twice=True)
    for what, sample in special_samples_of(operator):
        yield case(what, operator, sample)


def dtype_of(operator: Any) -> torch.dtype:
    """float32, where the operator takes it."""
    dtypes: Iterable[torch.dtype] = operator.dtypes
    return min(dtypes, key=lambda dtype: (dtype is not torch.float32, str(dtype)))


def samples_of(operator: Any, dtype: torch.dtype) -> Iterator[Any]:
    requires_grad = operator.supports_autograd and (
        dtype.is_floating_point or dtype.is_complex
    )
    # operator.sample_inputs() would look through the whole stack, at each call.
    samples = operator.sample_inputs_func(operator, "cpu", dtype, requires_grad)
    return iter(samples)


def special_samples_of(operator: Any) -> Iterator[tuple[str, Any]]:
    for layout in (torch.sparse_coo, torch.sparse_csr):
        if operator.supports_sparse_layout(layout):
            for number, sample in enumerate(sparse_samples_of(operator, layout)):
                yield f"{layout} sample {number}", sample
    if torch.complex64 in operator.dtypes:
        for sample in itertools.islice(samples_of(operator, torch.complex64), 1):
            yield "complex sample", sample
    if operator.error_inputs_func is not None:
        errors = itertools.islice(operator.error_inputs_func(operator, "cpu"), 3)
        for number, error in enumerate(errors):
            yield f"error {number}", error.sample_input


def sparse_samples_of(operator: Any, layout: torch.layout) -> list[Any]:
    """The first two, if torch has any."""
    requires_grad = operator.supports_autograd
    with contextlib.suppress(NotImplementedError, unittest.SkipTest):
        samples = operator.sample_inputs_sparse(
            layout, "cpu", torch.float32, requires_grad=requires_grad
        )
        return list(itertools.islice(samples, 2))
    return []


def variants_of(operator: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Other ways to call the operator than the function."""
    for kind in ("method_variant", "operator_variant"):
        if variant := getattr(operator, kind):
            yield kind, variant
    for kind in ("inplace_variant", "inplace_operator_variant"):
        if variant := getattr(operator, kind):
            yield kind, in_place(variant)
    if operator.supports_out:
        yield "out=", into_output(operator.op)
    for alias in operator.aliases:
        yield alias.name, alias.op


def in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Its first argument may be a leaf, which must not be overwritten."""
    return lambda first, *args, **kwargs: function(first.clone(), *args, **kwargs)


def into_output(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            output = pytree.tree_map(torch.zeros_like, function(*args, **kwargs))
            return function(*args, **kwargs, out=output)

    return call


def case(what: str, operator: Any, sample: Any) -> Case:
    return Case(
        what,
        always(operator.op),
        (sample.input, *sample.args),
        sample.kwargs,
        comparable=not shows_memory(operator, sample),
    )


def always(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    return lambda: function


def shows_memory(operator: Any, sample: Any) -> bool:
    """Whether the result depends on what happened to be in the memory: it is that, or,
    with the default of lstsq, LAPACK's gelsy is given some as pivots
    (https://github.com/pytorch/pytorch/issues/187411); or torch 2.8 differentiates."""
    if operator.name == "linalg.lstsq":
        return sample.kwargs.get("driver") in (None, "gelsy")
    if operator.name in {"abs", "sgn"}:
        return bool(torch.__version__.startswith("2.8."))
    return operator.name in {
        *("empty", "empty_like", "empty_permuted", "empty_strided"),
        *("new_empty", "new_empty_strided"),
    }


def all_cases(name: str) -> list[Case]:
    operator = OPERATORS[name]
    if not operator.dtypes:
        pytest.skip("not for the CPU")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch's samples are beta, and the like
        try:
            return list(cases_of(operator))
        except RuntimeError as error:
            if "NVIDIA driver" not in str(error):
                raise
            pytest.skip("torch makes samples of it on a GPU only")


@pytest.mark.parametrize("name", in_turns(OPERATORS, 0, 4))
def test_operator(name: str) -> None:
    cases = all_cases(name)
    assert differences(cases, list(OPERATORS).index(name)) == {}


class Callbacks(FunctionHook):
    """How often each callback was called."""

    name = "Callbacks"

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def forward_preprocess(self, *_: Any) -> None:
        self.counts["forward"] += 1

    def forward_postprocess(self, *_: Any) -> None:
        self.counts["forward over"] += 1

    def backward_preprocess(self, *_: Any) -> None:
        self.counts["backward"] += 1

    def backward_postprocess(self, *_: Any) -> None:
        self.counts["backward over"] += 1


@pytest.mark.parametrize("name", in_turns(OPERATORS, 2, 4))
def test_operator_is_seen_as_functions(name: str) -> None:
    wrong = {}
    runs = [Run(case) for case in all_cases(name)]
    with warnings.catch_warnings(), Callbacks() as callbacks:
        warnings.simplefilter("ignore")
        for one in runs:
            callbacks.counts.clear()
            one.forward()
            one.backward()
            if one.error is None and not is_seen(one, callbacks.counts):
                wrong[one.case.what] = dict(callbacks.counts)
    assert wrong == {}


def is_seen(one: Run, counts: Counter[str]) -> bool:
    """Whether there was at least one function, if the case computed tensors, and at
    least one backward of a function, if it recorded something for it."""
    has_graph = any(root.grad_fn for root in differentiable(one.output))
    return (
        # Inside of operators, functions may raise: what tries if a tensor is an index.
        counts["forward"] >= counts["forward over"] >= bool(tensors(one.output))
        and counts["backward"] == counts["backward over"] >= has_graph
    )
