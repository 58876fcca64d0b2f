from __future__ import annotations

import pytest

from tests.helpers import STEP, hand_built, own
from tests.profile_of import profile_of
from torchprof_hooks import Profile
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import GROUPINGS, Grouping, Phase
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.totals import Totals


def numbers(rows: tuple[Row, ...]) -> list[tuple[str, int, int, int]]:
    return [(row.name, row.calls, row.self_ns, row.cumulative_ns) for row in rows]


def one_row(profile: Profile, name: str, by: Grouping = "module") -> Row:
    (row,) = [row for row in profile.rows(by) if row.name == name]
    return row


def test_rows_by_module_are_sorted_by_cumulative_time() -> None:
    # Net: own 10 + 1; with a 30 + 40, b 5 + 6 and b.a 15 + 20 + 14: 141 in all.
    # b: own 5 + 6; with b.a 49: 60. Calls of a module are its forward calls.
    assert numbers(STEP.rows()) == [
        ("Net", 2, 11, 141),
        ("Net.a", 2, 70, 70),
        ("Net.b", 2, 11, 60),
        ("Net.b.a", 4, 49, 49),
        ("(outside modules)", 0, 12, 12),
        ("(optimizer) SGD", 2, 8, 8),
        ("(backward outside modules)", 2, 4, 4),
        ("(profiler)", 2, 3, 3),
    ]


def test_rows_by_class_put_modules_of_a_class_together() -> None:
    assert numbers(STEP.rows(by="class")) == [
        ("Net", 2, 11, 141),
        ("Linear", 6, 119, 119),  # a 70 and b.a 49, called 2 + 4 times
        ("Block", 2, 11, 60),
        ("(outside modules)", 0, 12, 12),
        ("(optimizer) SGD", 2, 8, 8),
        ("(backward outside modules)", 2, 4, 4),
        ("(profiler)", 2, 3, 3),
    ]


def test_phases_are_kept_apart() -> None:
    net, block = one_row(STEP, "Net"), one_row(STEP, "Net.b")

    assert net.phases == {
        "forward": Totals(calls=2, self_ns=10, cumulative_ns=60),  # 10 + 30 + 5 + 15
        "backward": Totals(calls=2, self_ns=1, cumulative_ns=61),  # 1 + 40 + 20
        "recompute": Totals(calls=0, self_ns=0, cumulative_ns=20),  # 6 + 14
    }
    assert block.phases["backward"] == Totals(cumulative_ns=20)  # only b.a had any


def test_rows_that_are_not_modules_have_the_phases_of_modules_and_their_own() -> None:
    phases = one_row(STEP, "(optimizer) SGD").phases

    assert phases["forward"] == phases["backward"] == phases["recompute"] == Totals()
    assert phases["optimizer"].self_ns == 8


@pytest.mark.parametrize("by", GROUPINGS)
def test_own_times_add_up_to_the_wall_time(by: Grouping) -> None:
    assert sum(row.self_ns for row in STEP.rows(by)) == STEP.wall_ns == 168


def test_kinds() -> None:
    assert {row.name: row.kind for row in STEP.rows(by="class")} == {
        "Net": "module",
        "Linear": "module",
        "Block": "module",
        "(outside modules)": "outside",
        "(optimizer) SGD": "optimizer",
        "(backward outside modules)": "backward",
        "(profiler)": "profiler",
    }


def test_attributed_is_what_modules_and_optimizers_took() -> None:
    assert STEP.attributed_ns == 149  # 168 without 12 outside, 4 backward, 3 profiler


def test_unknown_grouping_names_the_valid_ones() -> None:
    with pytest.raises(
        ValueError, match="by must be 'module', 'class', 'function' or 'call', not 'op'"
    ):
        STEP.rows(by="op")  # type: ignore[arg-type]


def test_ties_are_sorted_by_name() -> None:
    profile = hand_built(
        {("B", "forward"): own(5), ("C", "forward"): own(5), ("A", "forward"): own(5)},
        {"A": "X", "B": "X", "C": "X"},
    )

    assert [row.name for row in profile.rows()] == ["A", "B", "C"]
    assert [node.name for node in profile.tree().children] == ["A", "B", "C"]


def test_recursion_counts_once() -> None:
    # A module that calls itself: own 10, then 4 inside that, with a leaf of 3 inside.
    profile = hand_built(
        {
            ("R", "forward"): own(10),
            ("R > R", "forward"): own(4),
            ("R > R > R.leaf", "forward"): own(3),
        },
        {"R": "R", "R.leaf": "Leaf"},
    )

    assert numbers(profile.rows()) == [("R", 2, 14, 17), ("R.leaf", 1, 3, 3)]


def test_same_class_nested_counts_once() -> None:
    # Sequential (7) > Linear (20), Sequential (2) > Linear (30): one class in itself.
    profile = hand_built(
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
            "N.shared": ModuleInfo("Linear", aliases=("N.b.x",)),
        },
    )

    assert one_row(profile, "N.shared").aliases == ("N.b.x",)
    assert one_row(profile, "N.shared").self_ns == 30


def test_device_times_are_summed_like_the_host_ones() -> None:
    phase: Phase = "forward"
    profile = hand_built(
        {
            ("N", phase): own(1, device_ns=100),
            ("N > N.a", phase): own(2, device_ns=30),
            ("N > N.a > N.a", phase): own(2, device_ns=7),
        },
        {"N": "Net", "N.a": "A"},
    )
    net, inner = (one_row(profile, name).phases[phase] for name in ("N", "N.a"))

    assert (net.device_self_ns, net.device_cumulative_ns) == (100, 137)
    assert (inner.device_self_ns, inner.device_cumulative_ns) == (37, 37)


def test_compiled_is_a_mark_of_modules_not_of_classes() -> None:
    profile = hand_built(
        {("N", "forward"): own(1)}, {"N": ModuleInfo("Net", compiled=True)}
    )

    assert one_row(profile, "N").compiled
    assert profile.tree().children[0].compiled
    assert not one_row(profile, "Net", by="class").compiled


def test_an_empty_profile_has_no_rows() -> None:
    empty = profile_of()

    assert empty.is_empty
    assert empty.rows() == empty.rows(by="class") == ()
    assert empty.tree().children == ()
    assert (empty.attributed_ns, empty.tree().cumulative_ns) == (0, 0)


def test_a_profile_without_module_calls_is_empty() -> None:
    outside = hand_built(
        {("(outside modules)", "outside"): own(9, calls=0)},
        {"(outside modules)": ModuleInfo(kind="outside")},
    )

    assert outside.is_empty
    assert numbers(outside.rows()) == [("(outside modules)", 0, 9, 9)]
    assert not STEP.is_empty


def test_a_profile_does_not_change() -> None:
    cells = {(("N",), "forward"): own(1)}
    modules = {"N": ModuleInfo("Net")}
    profile = profile_of(cells, modules, wall_ns=1)  # type: ignore[arg-type]

    cells.clear()
    modules.clear()

    assert numbers(profile.rows()) == [("N", 1, 1, 1)]
    with pytest.raises(AttributeError):
        profile.wall_ns = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="does not support item assignment"):
        profile.cells[("N",), "forward"] = own(2)  # type: ignore[index]
    with pytest.raises(TypeError, match="does not support item assignment"):
        profile.modules["N"] = ModuleInfo("Other")  # type: ignore[index]
