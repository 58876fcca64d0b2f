from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import FUNCTIONS, STEP, hand_built, own
from tests.profile_of import profile_of
from torchprof_hooks import Profile
from torchprof_hooks.profiles.memory import MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import GROUPINGS, MODULE_PHASES, Grouping, Phase
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.profiles.tree import Node


def numbers(rows: tuple[Row, ...]) -> list[tuple[str, int, int, int]]:
    return [(row.name, row.calls, row.self_ns, row.cumulative_ns) for row in rows]


def one_row(profile: Profile, name: str, by: Grouping) -> Row:
    (row,) = [row for row in profile.rows(by) if row.name == name]
    return row


def test_functions_are_parts_of_the_modules_that_call_them() -> None:
    # Net: 10 + 1 and relu 3, checkpoint 4 + 16, tanh 5 + 6 + 15; with fc 57, block 48.
    # Outside: 17 and dropout 9, loss 7; in backward 3 and loss 8, dropout 14; SGD
    # 13 + 18. Nothing but modules counts as a call.
    assert numbers(FUNCTIONS.rows()) == [
        ("Net", 2, 60, 165),
        ("Net.fc", 2, 57, 57),  # 2 and 20 + 35
        ("Net.block", 2, 48, 48),  # 1 + 2 and 11 + 12 + 22
        ("(outside modules)", 0, 33, 33),
        ("(optimizer) SGD", 2, 31, 31),
        ("(backward outside modules)", 2, 25, 25),
        ("(profiler)", 2, 19, 19),
    ]
    assert numbers(FUNCTIONS.rows(by="class"))[:2] == [
        ("Net", 2, 60, 165),
        ("Linear", 4, 105, 105),
    ]


def test_functions_keep_their_phase_in_modules() -> None:
    net, block = (one_row(FUNCTIONS, name, "module") for name in ("Net", "Net.block"))

    assert {phase: t.self_ns for phase, t in net.phases.items()} == {
        "forward": 28,  # 10, relu 3, checkpoint 4, tanh 5 + 6
        "backward": 17,  # 1, checkpoint 16
        "recompute": 15,  # tanh
    }
    assert {phase: t.calls for phase, t in net.phases.items()} == {
        "forward": 2,
        "backward": 2,
        "recompute": 0,
    }
    assert block.phases["recompute"] == Totals(calls=2, self_ns=14, cumulative_ns=14)


def test_outside_of_modules_functions_have_the_phase_of_the_row() -> None:
    def own_times(name: str) -> dict[Phase, int]:
        phases = one_row(FUNCTIONS, name, "module").phases
        return {phase: t.self_ns for phase, t in phases.items() if t != Totals()}

    assert own_times("(outside modules)") == {"outside": 33}
    assert own_times("(backward outside modules)") == {"backward": 25}
    assert own_times("(optimizer) SGD") == {"optimizer": 31}


def test_functions_that_a_data_loader_calls_are_a_part_of_loading() -> None:
    profile = hand_built(
        {
            ("(data loading)", "data"): own(7, calls=2),
            ("(data loading) > stack(8 * 4)", "data"): own(5, calls=4),
            ("Net", "forward"): own(3, calls=2),
        },
        {"Net": "Net", "(data loading)": ModuleInfo(kind="data")},
    )

    modules = [("(data loading)", 2, 12, 12), ("Net", 2, 3, 3)]
    assert numbers(profile.rows()) == modules
    assert numbers(profile.rows(by="class")) == modules
    assert numbers(profile.rows(by="function")) == [
        ("(data loading)", 2, 7, 12),
        ("stack", 4, 5, 5),
        ("(modules, outside functions)", 0, 3, 3),
    ]
    assert profile.attributed_ns == 8
    assert [node.name for node in profile.tree().children] == ["Net", "(data loading)"]


def test_outside_of_modules_there_may_have_been_functions_only() -> None:
    profile = hand_built(
        {
            ("f()", "forward"): own(4),
            ("f()", "backward"): own(3),
            ("f()", "recompute"): own(2),
        },
        {},
    )

    assert not profile.is_empty
    assert profile.has_functions
    assert profile.attributed_ns == 9
    assert [(row.name, row.kind, row.self_ns) for row in profile.rows()] == [
        ("(backward outside modules)", "backward", 5),
        ("(outside modules)", "outside", 4),
    ]
    assert numbers(profile.rows(by="function")) == [("f", 1, 9, 9)]


def test_profiles_know_whether_they_have_functions() -> None:
    assert FUNCTIONS.has_functions
    assert not STEP.has_functions
    assert not profile_of().has_functions
    assert FUNCTIONS.attributed_ns == 273 - 17 - 3 - 19  # outside, backward, profiler


def test_extremes_of_functions_are_not_those_of_modules() -> None:
    cell = Totals(2, 30, 0, 5, 25, 30, 650, 7, 0, MemoryTotals(1, 2, 3, 4))
    profile = hand_built(
        {
            ("Net", "forward"): Totals(1, 9, 0, 39, 39, 39, 1521, 2),
            ("Net > f()", "forward"): cell,
            ("Net > f()", "backward"): cell,
        },
        {"Net": "Net"},
    )
    phases = one_row(profile, "Net", "module").phases
    memory = MemoryTotals(1, 2, 3, 0)

    assert phases["forward"] == Totals(
        1, 39, 39, 39, 39, 39, 1521, 9, 9, memory, memory
    )
    assert phases["backward"] == Totals(
        self_ns=30,
        cumulative_ns=30,
        device_self_ns=7,
        device_cumulative_ns=7,
        memory=memory,
        memory_cumulative=memory,
    )


def test_rows_by_function() -> None:
    # CheckpointFunction: own 4 + 16, with block 48. Modules: Net 10 + 1, fc 2, block
    # 1 + 2; their calls are not counted, and what they call is not a part of the row.
    assert numbers(FUNCTIONS.rows(by="function")) == [
        ("linear", 4, 100, 100),
        ("CheckpointFunction", 2, 20, 68),
        ("(optimizer) SGD", 2, 13, 31),
        ("tanh", 2, 20, 26),
        ("dropout", 2, 23, 23),
        ("(profiler)", 2, 19, 19),
        ("add_", 4, 18, 18),
        ("(outside modules)", 0, 17, 17),
        ("(modules, outside functions)", 0, 16, 16),
        ("cross_entropy", 2, 15, 15),
        ("mul", 6, 6, 6),
        ("(backward outside modules)", 2, 3, 3),
        ("relu", 4, 3, 3),
    ]
    row = one_row(FUNCTIONS, "linear", "function")
    assert (row.kind, row.class_name, row.module) == ("function", "linear", "")
    assert one_row(FUNCTIONS, "(modules, outside functions)", "function").kind == (
        "outside"
    )


def test_rows_by_call() -> None:
    rows = FUNCTIONS.rows(by="call")

    assert numbers(rows) == [
        ("Net", 2, 11, 165),
        ("Net: CheckpointFunction(8x4)", 2, 20, 68),
        ("Net.fc", 2, 2, 57),
        ("Net.fc: linear(8x4, 4x4)", 2, 55, 55),
        ("Net.block", 2, 3, 48),
        ("Net.block: linear(8x4, 4x4)", 2, 45, 45),
        ("(optimizer) SGD", 2, 13, 31),
        ("Net: tanh(8x4)", 2, 20, 26),
        ("dropout(8x4)", 2, 23, 23),
        ("(profiler)", 2, 19, 19),
        ("add_(4x4)", 4, 18, 18),
        ("(outside modules)", 0, 17, 17),
        ("cross_entropy(8x4, 8)", 2, 15, 15),
        ("Net: mul(8x4, 8x4)", 6, 6, 6),  # the module around it, not the function
        ("(backward outside modules)", 2, 3, 3),
        ("Net: relu(8x4)", 4, 3, 3),
    ]
    assert {row.name: (row.class_name, row.module) for row in rows[:9]} == {
        "Net": ("Net", "Net"),
        "Net: CheckpointFunction(8x4)": ("CheckpointFunction", "Net"),
        "Net.fc": ("Linear", "Net.fc"),
        "Net.fc: linear(8x4, 4x4)": ("linear", "Net.fc"),
        "Net.block": ("Linear", "Net.block"),
        "Net.block: linear(8x4, 4x4)": ("linear", "Net.block"),
        "(optimizer) SGD": ("", ""),
        "Net: tanh(8x4)": ("tanh", "Net"),
        "dropout(8x4)": ("dropout", ""),
    }


def test_the_module_of_rows_and_nodes() -> None:
    def modules(by: Grouping) -> dict[str, str]:
        return {row.name: row.module for row in FUNCTIONS.rows(by) if row.module}

    assert modules("module") == {n: n for n in ("Net", "Net.fc", "Net.block")}
    assert modules("class") == modules("function") == {}
    assert [
        (node.name, node.module)
        for _, node in FUNCTIONS.tree(functions=True).walk()
        if node.kind == "function"
    ] == [
        ("linear(8x4, 4x4)", "Net.fc"),
        ("relu(8x4)", "Net"),
        ("CheckpointFunction(8x4)", "Net"),
        ("linear(8x4, 4x4)", "Net.block"),
        ("tanh(8x4)", "Net"),
        ("mul(8x4, 8x4)", "Net"),
        ("dropout(8x4)", ""),
        ("cross_entropy(8x4, 8)", ""),
        ("add_(4x4)", ""),
    ]


def test_a_function_called_from_two_places_in_a_module_is_one_call_site() -> None:
    # f calls g, and the module calls g itself; g, in turn, calls f: that counts once.
    profile = hand_built(
        {
            ("N > f()", "forward"): own(1),
            ("N > f() > g()", "forward"): own(20),
            ("N > g()", "forward"): own(300),
            ("N > g() > f()", "forward"): own(4000),
        },
        {"N": "Net"},
    )

    assert numbers(profile.rows(by="call")) == [
        ("N", 0, 0, 4321),
        ("N: g()", 2, 320, 4320),
        ("N: f()", 2, 4001, 4021),
    ]
    assert numbers(profile.rows(by="function")) == [
        ("g", 2, 320, 4320),
        ("f", 2, 4001, 4021),
    ]


def test_rows_without_functions() -> None:
    # What a profile without functions has to say by function is not much.
    assert STEP.rows(by="call") == STEP.rows()
    assert numbers(STEP.rows(by="function")) == [
        ("(modules, outside functions)", 0, 141, 141),
        ("(outside modules)", 0, 12, 12),
        ("(optimizer) SGD", 2, 8, 8),
        ("(backward outside modules)", 2, 4, 4),
        ("(profiler)", 2, 3, 3),
    ]


def sketch(node: Node) -> dict[str, Any]:
    return {f"{n.name} {n.self_ns} {n.cumulative_ns}": sketch(n) for n in node.children}


def test_a_tree_of_modules() -> None:
    assert sketch(FUNCTIONS.tree()) == {
        "Net 60 165": {"Net.fc 57 57": {}, "Net.block 48 48": {}},
        "(outside modules) 33 33": {},
        "(optimizer) SGD 31 31": {},
        "(backward outside modules) 25 25": {},
        "(profiler) 19 19": {},
    }


def test_a_tree_of_modules_and_functions() -> None:
    assert sketch(FUNCTIONS.tree(functions=True)) == {
        "Net 11 165": {
            "Net.fc 2 57": {"linear(8x4, 4x4) 55 55": {}},
            "relu(8x4) 3 3": {},
            "CheckpointFunction(8x4) 20 68": {
                "Net.block 3 48": {"linear(8x4, 4x4) 45 45": {}},
            },
            "tanh(8x4) 20 26": {"mul(8x4, 8x4) 6 6": {}},
        },
        "dropout(8x4) 23 23": {},
        "cross_entropy(8x4, 8) 15 15": {},
        "(optimizer) SGD 13 31": {"add_(4x4) 18 18": {}},
        "(profiler) 19 19": {},
        "(outside modules) 17 17": {},
        "(backward outside modules) 3 3": {},
    }
    assert STEP.tree(functions=True) == STEP.tree()


@pytest.mark.parametrize("by", GROUPINGS)
def test_own_times_add_up_to_the_wall_time(by: Grouping) -> None:
    assert sum(row.self_ns for row in FUNCTIONS.rows(by)) == FUNCTIONS.wall_ns == 273


numbers_of_a_cell = st.builds(
    Totals,
    calls=st.integers(0, 9),
    self_ns=st.integers(0, 99),
    min_ns=st.integers(0, 9),
    max_ns=st.integers(9, 99),
    duration_ns=st.integers(0, 99),
    squares_ns2=st.integers(0, 99),
    device_self_ns=st.integers(0, 99),
    memory=st.builds(
        MemoryTotals,
        st.integers(-99, 99),
        st.integers(0, 99),
        st.integers(-99, 99),
        st.integers(0, 99),
    ),
)

cells = st.dictionaries(
    st.tuples(
        st.lists(
            st.sampled_from(["Net", "Net.a", "f(2)", "f(3)", "g()"]),
            min_size=1,
            max_size=5,
        ).map(tuple),
        st.sampled_from(MODULE_PHASES),
    ),
    numbers_of_a_cell,
    max_size=9,
)

INFOS = {
    "Net": ModuleInfo("Net"),
    "Net.a": ModuleInfo("A", order=1),
    "f(2)": ModuleInfo("f", "function"),
    "f(3)": ModuleInfo("f", "function"),
    "g()": ModuleInfo("g", "function"),
    "(outside modules)": ModuleInfo(kind="outside"),
    "(backward outside modules)": ModuleInfo(kind="backward"),
}


def folded_by_hand(profile: Profile) -> Profile:
    """The profile as if its functions had been lines of their callers."""
    folded: dict[tuple[tuple[str, ...], Phase], Totals] = {}
    for (path, phase), totals in profile.cells.items():
        key, part = (tuple(n for n in path if "(" not in n), phase), totals
        if "(" in path[-1]:
            memory = totals.memory
            part = Totals(
                self_ns=totals.self_ns,
                device_self_ns=totals.device_self_ns,
                memory=MemoryTotals(
                    memory.used_bytes, memory.acquired_bytes, memory.retained_bytes
                ),
            )
        if not key[0] and phase == "forward":
            key = (("(outside modules)",), "outside")
        elif not key[0]:
            key = (("(backward outside modules)",), "backward")
        folded[key] = folded.get(key, Totals()) + part
    kept = {name: info for name, info in INFOS.items() if info.kind != "function"}
    return profile.with_cells(folded, kept)


@given(cells)
def test_modules_are_what_they_are_without_functions(
    cells: dict[tuple[tuple[str, ...], Phase], Totals],
) -> None:
    profile = profile_of(cells, INFOS)
    folded = folded_by_hand(profile)

    assert profile.rows() == folded.rows()
    assert profile.rows(by="class") == folded.rows(by="class")
    assert profile.tree() == folded.tree()


@given(cells)
def test_calls_of_modules_and_functions_are_counted_once(
    cells: dict[tuple[tuple[str, ...], Phase], Totals],
) -> None:
    profile = profile_of(cells, INFOS)

    def calls(by: Grouping, kind: str) -> int:
        rows = [row for row in profile.rows(by) if row.kind == kind]
        return sum(t.calls for row in rows for t in row.phases.values())

    def truth(kind: str) -> int:
        return sum(t.calls for (p, _), t in cells.items() if INFOS[p[-1]].kind == kind)

    assert calls("module", "module") == calls("class", "module") == truth("module")
    assert calls("function", "function") == truth("function")
    assert calls("call", "function") == truth("function")
    assert calls("call", "module") == truth("module")
