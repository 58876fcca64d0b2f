from __future__ import annotations

from typing import Any

from tests.helpers import STEP, hand_built, own
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.tree import Node


def test_tree() -> None:
    def sketch(node: Node) -> dict[str, Any]:
        return {f"{n.name} {n.cumulative_ns}": sketch(n) for n in node.children}

    assert sketch(STEP.tree()) == {
        "Net 141": {"Net.a 70": {}, "Net.b 60": {"Net.b.a 49": {}}},
        "(outside modules) 12": {},
        "(optimizer) SGD 8": {},
        "(backward outside modules) 4": {},
        "(profiler) 3": {},
    }
    assert STEP.tree().cumulative_ns == STEP.wall_ns
    assert STEP.tree().self_ns == 0


def test_levels_of_a_recursion_are_nodes_of_their_own() -> None:
    # A module that calls itself: own 10, then 4 inside that, with a leaf of 3 inside.
    profile = hand_built(
        {
            ("R", "forward"): own(10),
            ("R > R", "forward"): own(4),
            ("R > R > R.leaf", "forward"): own(3),
        },
        {"R": "R", "R.leaf": "Leaf"},
    )

    assert [(d, n.self_ns, n.cumulative_ns) for d, n in profile.tree().walk()] == [
        (0, 0, 17),
        (1, 10, 17),
        (2, 4, 7),
        (3, 3, 3),
    ]


def test_a_module_called_from_two_places_is_two_nodes() -> None:
    profile = hand_built(
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
            "N.shared": "Linear",
        },
    )

    assert [(d, n.name, n.cumulative_ns) for d, n in profile.tree().walk()] == [
        (0, "", 33),
        (1, "N", 33),  # was called, but that call has not ended: no cell of its own
        (2, "N.a", 11),
        (3, "N.shared", 10),
        (2, "N.b", 22),
        (3, "N.shared", 20),
    ]


def test_modules_stand_in_order_of_first_call_and_the_rest_behind_them() -> None:
    profile = hand_built(
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

    assert [child.name for child in profile.tree().children] == [
        "Early",
        "Late",
        "(optimizer) SGD",
        "(outside modules)",
    ]
