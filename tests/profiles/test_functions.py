"""Rows and trees of modules and the functions that they call."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.build import FUNCTIONS, own, profile_of
from tests.profiles.test_merge import totals
from tests.profiles.views import numbers, one_row, sketch
from torchprof_hooks import Profile
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import MODULE_PHASES, Grouping, Phase
from torchprof_hooks.profiles.totals import Totals


def test_rows_of_modules_have_what_functions_took() -> None:
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
        ("(profiler overhead)", 2, 19, 19),
    ]
    by_class = numbers(FUNCTIONS.rows(by="class"))
    assert by_class[:2] == [("Net", 2, 60, 165), ("Linear", 4, 105, 105)]
    assert one_row(FUNCTIONS, "(optimizer) SGD").phases["optimizer"].self_ns == 31
    assert FUNCTIONS.attributed_ns == 273 - 17 - 3 - 19  # outside, backward, profiler


def test_rows_by_function() -> None:
    # CheckpointFunction: own 4 + 16, with block 48. Modules: Net 10 + 1, fc 2, block
    # 1 + 2; their calls are not counted, and what they call is not a part of the row.
    found = numbers(FUNCTIONS.rows(by="function"))
    assert found[:4] == [
        ("linear", 4, 100, 100),
        ("CheckpointFunction", 2, 20, 68),
        ("(optimizer) SGD", 2, 13, 31),
        ("tanh", 2, 20, 26),
    ]
    assert ("(modules, outside functions)", 0, 16, 16) in found
    row = one_row(FUNCTIONS, "linear", "function")
    assert (row.kind, row.class_name, row.module) == ("function", "linear", "")
    modules = one_row(FUNCTIONS, "(modules, outside functions)", "function")
    assert modules.kind == "outside"


def test_rows_by_call() -> None:
    found = [
        (row.name, row.module, row.class_name, row.calls, row.self_ns)
        for row in FUNCTIONS.rows(by="call")
    ]
    assert found == [
        ("Net", "Net", "Net", 2, 11),
        ("Net: CheckpointFunction(8x4)", "Net", "CheckpointFunction", 2, 20),
        ("Net.fc", "Net.fc", "Linear", 2, 2),
        ("Net.fc: linear(8x4, 4x4)", "Net.fc", "linear", 2, 55),
        ("Net.block", "Net.block", "Linear", 2, 3),
        ("Net.block: linear(8x4, 4x4)", "Net.block", "linear", 2, 45),
        ("(optimizer) SGD", "", "", 2, 13),
        ("Net: tanh(8x4)", "Net", "tanh", 2, 20),
        ("dropout(8x4)", "", "dropout", 2, 23),
        ("(profiler overhead)", "", "", 2, 19),
        ("add_(4x4)", "", "add_", 4, 18),
        ("(outside modules)", "", "", 0, 17),
        ("cross_entropy(8x4, 8)", "", "cross_entropy", 2, 15),
        # of the module around it, not of the function
        ("Net: mul(8x4, 8x4)", "Net", "mul", 6, 6),
        ("(backward outside modules)", "", "", 2, 3),
        ("Net: relu(8x4)", "Net", "relu", 4, 3),
    ]


def test_trees() -> None:
    assert sketch(FUNCTIONS.tree()) == {
        "Net 60 165": {"Net.fc 57 57": {}, "Net.block 48 48": {}},
        "(outside modules) 33 33": {},
        "(optimizer) SGD 31 31": {},
        "(backward outside modules) 25 25": {},
        "(profiler overhead) 19 19": {},
    }
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
        "(profiler overhead) 19 19": {},
        "(outside modules) 17 17": {},
        "(backward outside modules) 3 3": {},
    }
    nodes = [node for _, node in FUNCTIONS.tree(functions=True).walk()]
    around = [node.module for node in nodes if node.kind == "function"]
    assert around == ["Net.fc", "Net", "Net", "Net.block", "Net", "Net", "", "", ""]


def test_functions_that_a_data_loader_calls_are_a_part_of_loading() -> None:
    profile = profile_of(
        {
            ("(data loading)", "data"): own(7, calls=2),
            ("(data loading) > stack(8 * 4)", "data"): own(5, calls=4),
            ("Net", "forward"): own(3, calls=2),
        },
        {"Net": "Net"},
    )
    modules = [("(data loading)", 2, 12, 12), ("Net", 2, 3, 3)]
    assert numbers(profile.rows()) == numbers(profile.rows(by="class")) == modules
    assert numbers(profile.rows(by="function")) == [
        ("(data loading)", 2, 7, 12),
        ("stack", 4, 5, 5),
        ("(modules, outside functions)", 0, 3, 3),
    ]
    assert profile.attributed_ns == 8
    assert sketch(profile.tree()) == {"Net 3 3": {}, "(data loading) 12 12": {}}


def test_outside_of_modules_there_may_have_been_functions_only() -> None:
    profile = profile_of(
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


def test_a_function_called_from_two_places_in_a_module_is_one_call_site() -> None:
    # f calls g, and the module calls g itself; g, in turn, calls f: that counts once.
    profile = profile_of(
        {
            ("N > f()", "forward"): own(1),
            ("N > f() > g()", "forward"): own(20),
            ("N > g()", "forward"): own(300),
            ("N > g() > f()", "forward"): own(4000),
        },
        {"N": "Net"},
    )
    g, f = (2, 320, 4320), (2, 4001, 4021)
    sites = [("N", 0, 0, 4321), ("N: g()", *g), ("N: f()", *f)]
    assert numbers(profile.rows(by="call")) == sites
    assert numbers(profile.rows(by="function")) == [("g", *g), ("f", *f)]


# Any profile

cells = st.dictionaries(
    st.tuples(
        st.lists(
            st.sampled_from(["Net", "Net.a", "f(2)", "f(3)", "g()"]),
            min_size=1,
            max_size=5,
        ).map(tuple),
        st.sampled_from(MODULE_PHASES),
    ),
    totals().map(lambda cell: replace(cell, flops=0)),
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
    for (path, phase), cell in profile.cells.items():
        key, part = (tuple(n for n in path if "(" not in n), phase), cell
        if "(" in path[-1]:
            part = Totals(
                self_ns=cell.self_ns,
                device_self_ns=cell.device_self_ns,
                memory=replace(cell.memory, peak_bytes=0),
            )
        if not key[0] and phase == "forward":
            key = (("(outside modules)",), "outside")
        elif not key[0]:
            key = (("(backward outside modules)",), "backward")
        folded[key] = folded.get(key, Totals()) + part
    kept = {name: info for name, info in INFOS.items() if info.kind != "function"}
    return profile.with_cells(folded, kept)


@given(cells)
def test_modules_are_what_they_are_without_functions_and_calls_count_once(
    cells: dict[tuple[tuple[str, ...], Phase], Totals],
) -> None:
    profile = profile_of(cells, INFOS)
    folded = folded_by_hand(profile)
    assert profile.rows() == folded.rows()
    assert profile.rows(by="class") == folded.rows(by="class")
    assert profile.tree() == folded.tree()

    def calls(by: Grouping, kind: str) -> int:
        rows = [row for row in profile.rows(by) if row.kind == kind]
        return sum(t.calls for row in rows for t in row.phases.values())

    def truth(kind: str) -> int:
        return sum(t.calls for (p, _), t in cells.items() if INFOS[p[-1]].kind == kind)

    assert calls("module", "module") == calls("class", "module") == truth("module")
    assert calls("call", "module") == truth("module")
    assert calls("function", "function") == truth("function")
    assert calls("call", "function") == truth("function")
