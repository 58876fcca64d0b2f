"""Rows and trees of modules."""

from __future__ import annotations

import pytest

from tests.build import STEP, own, profile_of
from tests.profiles.views import numbers, one_row, sketch
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.totals import Totals


def test_phases_are_kept_apart() -> None:
    net, block, sgd = (
        one_row(STEP, name).phases for name in ("Net", "Net.b", "(optimizer) SGD")
    )
    assert net == {
        "forward": Totals(calls=2, self_ns=10, cumulative_ns=60),  # 10 + 30 + 5 + 15
        "backward": Totals(calls=2, self_ns=1, cumulative_ns=61),  # 1 + 40 + 20
        "recompute": Totals(calls=0, self_ns=0, cumulative_ns=20),  # 6 + 14
    }
    assert block["backward"] == Totals(cumulative_ns=20)  # only b.a had any
    # What is no module has the phases of modules and its own.
    assert sgd["forward"] == sgd["backward"] == sgd["recompute"] == Totals()
    assert sgd["optimizer"].self_ns == 8


def test_nodes_stand_in_order_of_first_call_and_the_rest_behind_them() -> None:
    profile = profile_of(
        {
            ("(outside modules)", "outside"): own(90, calls=0),
            ("(optimizer) SGD", "optimizer"): own(99),
            ("Late", "forward"): own(50),
            ("Early", "forward"): own(1),
        },
        {
            "(outside modules)": ModuleInfo(kind="outside"),
            "(optimizer) SGD": ModuleInfo(kind="optimizer"),
            "Early": ModuleInfo("Early", order=2),
            "Late": ModuleInfo("Late", order=3),
        },
    )
    found = [child.name for child in profile.tree().children]
    assert found == ["Early", "Late", "(optimizer) SGD", "(outside modules)"]


def test_a_module_that_calls_itself_is_one_row_that_counts_once() -> None:
    profile = profile_of(
        {
            ("R", "forward"): own(10),
            ("R > R", "forward"): own(4),
            ("R > R > R.leaf", "forward"): own(3),
        },
        {"R": "R", "R.leaf": "Leaf"},
    )
    assert numbers(profile.rows()) == [("R", 2, 14, 17), ("R.leaf", 1, 3, 3)]
    assert sketch(profile.tree()) == {"R 10 17": {"R 4 7": {"R.leaf 3 3": {}}}}


def test_modules_of_a_class_inside_of_each_other_count_once() -> None:
    profile = profile_of(
        {
            ("S", "forward"): own(7),
            ("S > S.0", "forward"): own(20),
            ("S > S.1", "forward"): own(2),
            ("S > S.1 > S.1.0", "forward"): own(30),
        },
        {"S": "Sequential", "S.0": "Linear", "S.1": "Sequential", "S.1.0": "Linear"},
    )
    assert numbers(profile.rows(by="class")) == [
        ("Sequential", 2, 9, 59),  # 7 + 2; all 59, not 59 + 32
        ("Linear", 2, 50, 50),
    ]


def test_a_module_called_from_two_places_is_one_row_and_two_nodes() -> None:
    profile = profile_of(
        {
            ("N > N.a", "forward"): own(1),
            ("N > N.a > N.shared", "forward"): own(10),
            ("N > N.b", "forward"): own(2),
            ("N > N.b > N.shared", "forward"): own(20),
        },
        {
            "N": "Net",
            "N.a": "A",
            "N.b": "B",
            "N.shared": ModuleInfo("Linear", aliases=("N.b.x",), order=9),
        },
    )
    shared = one_row(profile, "N.shared")
    assert (shared.aliases, shared.self_ns) == (("N.b.x",), 30)
    # The call of N has not ended: no cell of its own.
    assert sketch(profile.tree()) == {
        "N 0 33": {
            "N.a 1 11": {"N.shared 10 10": {}},
            "N.b 2 22": {"N.shared 20 20": {}},
        }
    }


def test_a_profile_without_calls_is_empty() -> None:
    outside = profile_of({("(outside modules)", "outside"): own(9, calls=0)})
    assert outside.is_empty
    assert numbers(outside.rows()) == [("(outside modules)", 0, 9, 9)]


def test_a_profile_does_not_change() -> None:
    cells = {(("N",), "forward"): own(1)}
    modules = {"N": ModuleInfo("Net")}
    profile = profile_of(cells, modules, wall_ns=1)
    cells.clear()
    modules.clear()
    assert numbers(profile.rows()) == [("N", 1, 1, 1)]
    with pytest.raises(AttributeError):
        profile.wall_ns = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="does not support item assignment"):
        profile.cells[("N",), "forward"] = own(2)  # type: ignore[index]
    with pytest.raises(TypeError, match="does not support item assignment"):
        profile.modules["N"] = ModuleInfo("Other")  # type: ignore[index]
