"""Backward passes in a device's thread that make graphs of their own."""

from __future__ import annotations

import json

import pytest
from torch.utils import backend_registration

from tests.programs import python

STEPS = 3
#: Of each layer, in milliseconds.
BACKWARD = {"Net.a": 1, "Net.b": 20, "Net.c": 2}
#: What the backward of that takes, so many times as long.
OF_BACKWARD = 100

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch does not let Python play a device",
)
places = pytest.mark.parametrize("place", ["device", "cpu"])


def backward_ms(*options: str) -> dict[str, float]:
    """See `tests.capture.device_graphs`."""
    done = python("-m", "tests.capture.device_graphs", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return {name: ms for name, ms in found.items() if ms}


def expected(times: int) -> dict[str, float]:
    layers = {name: STEPS * times * ms for name, ms in BACKWARD.items()}
    return {"Net": sum(layers.values()), **layers}


@pytest.mark.slow
@places
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_double_backward_belongs_to_whose_backward_made_it(
    where: str, place: str
) -> None:
    assert backward_ms(where, place) == expected(times=2 + OF_BACKWARD)


@pytest.mark.slow
@places
def test_double_backward_where_one_owner_is_open_until_the_end(place: str) -> None:
    assert backward_ms("alone", place) == {"Alone": STEPS * (2 + OF_BACKWARD)}


@pytest.mark.slow
@places
def test_graphs_made_inside_of_a_backward_hide_no_owner(place: str) -> None:
    assert backward_ms("backward", place) == expected(times=1)


@pytest.mark.slow
@places
def test_graphs_of_a_backward_that_returns_nothing(place: str) -> None:
    found = backward_ms("nothing", place)
    assert {name: found[name] for name in expected(times=2)} == expected(times=2)
