from __future__ import annotations

import re
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import STEP, hand_built, own, table
from tests.profile_of import profile_of
from tests.profiles.test_merge import profiles
from torchprof_hooks import Profile
from torchprof_hooks.documents.export.stacks import render_collapsed as render
from torchprof_hooks.profiles.modules import ModuleInfo


def test_a_line_for_each_stack_and_phase() -> None:
    assert render(STEP) == table("""
forward;Net 10
backward;Net 1
forward;Net;Net.a 30
backward;Net;Net.a 40
forward;Net;Net.b 5
recompute;Net;Net.b 6
forward;Net;Net.b;Net.b.a 15
backward;Net;Net.b;Net.b.a 20
recompute;Net;Net.b;Net.b.a 14
other;(outside modules) 12
other;(optimizer) SGD 8
backward;(backward outside modules) 4
other;(profiler) 3
""")


def test_waiting_for_data_is_no_phase_of_a_module() -> None:
    info = {"(data loading)": ModuleInfo(kind="data")}
    profile = hand_built({("(data loading)", "data"): own(5)}, info)

    assert render(profile) == "other;(data loading) 5"


def test_separators_in_names_are_escaped() -> None:
    odd = "a;b\nc %3B d\u2028"
    profile = hand_built({(odd, "forward"): own(5)}, {odd: "Net"})

    assert render(profile) == "forward;a%3Bb%0Ac %253B d%E2%80%A8 5"


def test_of_nothing_there_are_no_lines() -> None:
    assert render(profile_of()) == ""


@given(st.text(min_size=1))
def test_any_name_can_be_read_back(name: str) -> None:
    profile = profile_of(
        {((name, name), "forward"): own(7)},
        hand_built({(name, "forward"): own(7)}, {name: "Net"}).modules,
    )

    [line] = render(profile).splitlines()

    stack, _, weight = line.rpartition(" ")
    assert [unquote(part) for part in stack.split(";")] == ["forward", name, name]
    assert weight == "7"


@given(profiles)
def test_lines_are_what_the_readers_of_the_format_expect(profile: Profile) -> None:
    lines = render(profile).splitlines()

    matches = [re.fullmatch(r"(.*) (\d+)", line) for line in lines]
    weights = [int(match[2]) for match in matches if match]
    assert len(weights) == len(lines)
    own_times = (totals.self_ns for totals in profile.cells.values())
    assert sum(weights) == sum(time for time in own_times if time > 0)
