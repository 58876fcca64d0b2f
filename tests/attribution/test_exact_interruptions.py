"""All numbers where calls do not follow each other in peace: left by exceptions, in the
middle of each other, in several threads, and read meanwhile.

Only what anybody can ask of `profile()` is looked at: this holds however it measures.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.doing import (
    Net,
    X,
    in_backward,
    in_communication,
    in_forward,
    in_loading,
    in_optimizer,
    in_recomputation,
)
from tests.exact import (
    NET_FORWARD,
    Found,
    calls,
    each_option,
    found,
    net_backward,
    no_calls,
    passes,
)
from tests.fake_clock import burn
from tests.planted import Work
from torchprof_hooks import Profile, profile

pytestmark = pytest.mark.usefixtures("clock")

#: Forward of the model in which work is done when it is called again.
OF_CHECKPOINT: Found = {
    ("Sequential", "forward"): calls(1, own=0),
    ("Sequential.0", "forward"): calls(0),
    ("Sequential.1", "forward"): calls(1),
}
#: Where work may be done, and the rows that it is found in: while it lasts for 100 ms,
#: and after that and 50 more.
PLACES: dict[str, tuple[Callable[[Any], None], Found, Found]] = {
    "forward": (
        in_forward,
        {("Sequential.0", "forward"): no_calls(100)},
        {
            ("Sequential", "forward"): calls(150, own=0),
            ("Sequential.0", "forward"): calls(150),
        },
    ),
    "backward": (
        in_backward,
        {
            **NET_FORWARD,
            ("Net", "backward"): no_calls(100),
            ("Net.last", "backward"): calls(8),
        },
        {**NET_FORWARD, **net_backward(own=150), **passes(162)},
    ),
    "recomputation": (
        in_recomputation,
        {**OF_CHECKPOINT, ("Sequential.0", "recompute"): no_calls(100)},
        {
            **OF_CHECKPOINT,
            ("Sequential", "recompute"): calls(151, own=0),
            ("Sequential.0", "recompute"): calls(150),
            ("Sequential.1", "recompute"): calls(1),
            ("Sequential", "backward"): calls(4, own=0),
            ("Sequential.1", "backward"): calls(4),
            **passes(4),
        },
    ),
    "optimizer": (
        in_optimizer,
        {("(optimizer) SGDThat", "optimizer"): no_calls(100)},
        {("(optimizer) SGDThat", "optimizer"): calls(150)},
    ),
    "loading": (
        in_loading,
        {("(data loading)", "data"): no_calls(100)},
        {("(data loading)", "data"): calls(150)},
    ),
    "communication": (
        in_communication,
        {("(communication) all_gather_object", "communication"): no_calls(100)},
        {("(communication) all_gather_object", "communication"): calls(150)},
    ),
}
each_place = pytest.mark.parametrize("place", PLACES)


@each_option
@each_place
@pytest.mark.usefixtures("alone")
def test_reading_in_the_middle(options: Any, place: str) -> None:
    do_there, meanwhile, in_the_end = PLACES[place]
    seen: list[Profile] = []

    def work() -> None:
        burn(100)
        seen.append(prof.profile)
        burn(50)

    with profile(**options) as prof:
        do_there(work)
    assert found(seen[0]) == meanwhile
    assert found(prof.profile) == in_the_end


def test_what_is_imported_for_reading_is_overhead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def slow(name: str, *args: Any) -> Any:
        burn(50 * name.endswith("profile_type"))
        return real(name, *args)

    with profile() as prof:
        burn(1)
        monkeypatch.setattr(builtins, "__import__", slow)
        assert found(prof.profile)
    assert found(prof.profile)["(outside modules)", "outside"] == no_calls(1)


@each_option
@each_place
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_left_by_an_exception(options: Any, place: str, error: Any) -> None:
    do_there, meanwhile, _ = PLACES[place]
    after = Work(32)

    def fail() -> None:
        burn(100)
        raise error("planted")

    with profile(**options) as prof:
        with pytest.raises(error, match="planted"):
            do_there(fail)
        burn(16)
        after(X)
    rows = found(prof.profile)
    assert rows.pop(("Work", "forward")) == calls(32)
    # Calls that ended before are as they were; nobody has what was done afterwards.
    before = {key: row for key, row in meanwhile.items() if row.calls}
    assert {key: rows.pop(key) for key in before} == before
    nowhere = sum(row.own for (_, phase), row in rows.items() if phase == "outside")
    # Of some that are left, nobody tells when: by interrupts, and optimizers' steps.
    assert nowhere in (16, 116)
    if error is ValueError and place != "optimizer":
        assert nowhere == 16
    left = {key: row for key, row in rows.items() if key[1] != "outside"}
    assert sum(row.own for row in left.values()) == 116 - nowhere
    assert all(row.calls <= 1 for row in left.values())


def backward_with(work: Callable[[], object], options: Any) -> Found:
    """What is found when `work` is done in the middle of a backward pass."""
    net = Net(work)
    with profile(**options) as prof:
        net(X).sum().backward()
    return found(prof.profile)


@each_option
@pytest.mark.usefixtures("alone")
def test_what_interrupts_a_pass(options: Any) -> None:
    def work() -> None:
        in_optimizer(lambda: burn(16))
        in_loading(lambda: burn(32))
        in_communication(lambda: burn(64))

    assert backward_with(work, options) == {
        **NET_FORWARD,
        **net_backward(),
        **passes(12),
        ("(optimizer) SGDThat", "optimizer"): calls(16),
        ("(data loading)", "data"): calls(32),
        ("(communication) all_gather_object", "communication"): calls(64),
    }


@each_option
def test_a_pass_and_a_call_inside_of_a_pass(options: Any) -> None:
    inner = Work(16, 32)

    def work() -> None:
        burn(64)
        with torch.enable_grad():
            inner(X).sum().backward()
        burn(128)

    rows = backward_with(work, options)
    assert rows.pop(("Work", "recompute")) == calls(16)
    assert rows.pop(("Work", "backward")) == calls(32)
    # A pass is no interruption in there, but a part of what was running.
    assert rows.pop(("Net", "backward")).own == 64 + 128
    assert rows.pop(("(backward outside modules)", "backward")).own == 0
    of_parts = {key: row for key, row in net_backward().items() if key[0] != "Net"}
    assert rows == {**NET_FORWARD, **of_parts}
