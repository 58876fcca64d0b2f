"""Every module that torch has samples of does the same, measured and not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.invisibility.databases.samples import Case, database, differences, some_of
from tests.thorough import THOROUGH

MODULES = {
    f"{module.formatted_name}, {mode}": (module, mode == "training")
    for module in database("common_modules").module_db
    for mode in ("training", "evaluation")
    if mode == "training" or module.train_and_eval_differ
}


def cases_of(module: Any, training: bool) -> Iterator[Case]:
    """Some samples, the first one without gradients, and all that raise."""
    samples = samples_of(module.module_inputs_func, module, training)
    for number, sample in enumerate(some_of(samples)):
        yield case(f"sample {number}", module, sample, training)
    first = case("without grad", module, samples[0], training)
    yield replace(first, mode=torch.no_grad)
    if module.module_error_inputs_func is not None:
        errors = samples_of(module.module_error_inputs_func, module, training)
        for number, error in enumerate(errors):
            sample = error.module_error_input
            yield case(f"error {number}", module, sample, training)


def samples_of(function: Callable[..., Any], module: Any, training: bool) -> list[Any]:
    samples = function(
        module, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    return list(samples)


def case(what: str, module: Any, sample: Any, training: bool) -> Case:
    def make() -> nn.Module:
        made = sample.constructor_input
        instance: nn.Module = module.module_cls(*made.args, **made.kwargs)
        return instance.to(torch.float32).train(training)

    given = sample.forward_input
    if given is None:  # making it raises
        return Case(what, make)
    return Case(what, make, given.args, given.kwargs)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if is_training else THOROUGH)
        for name, (_, is_training) in MODULES.items()
    ],
)
def test_module(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about some of the samples
        cases = list(cases_of(*MODULES[name]))
    assert differences(cases, list(MODULES).index(name)) == {}
