from __future__ import annotations

from tests.helpers import body, hand_built, own, table
from torchprof_hooks.profiles.modules import ModuleInfo


def test_shared_modules_have_a_mark_and_a_footnote() -> None:
    profile = hand_built(
        {("Tied", "forward"): own(4)},
        {"Tied": ModuleInfo("Tied", aliases=("Tied.head", "Tied.tail"))},
    )

    assert body(profile) == table("""
module         calls  forward   total      %
--------------------------------------------
Tied [shared]      1   4.00ns  4.00ns  100.0
[shared] Tied is also Tied.head, Tied.tail
""")


def test_compiled_modules_have_a_mark() -> None:
    profile = hand_built(
        {("N", "forward"): own(1), ("N > N.fast", "forward"): own(3)},
        {
            "N": "N",
            "N.fast": ModuleInfo("Fast", aliases=("N.quick",), compiled=True),
        },
    )

    assert body(profile) == table("""
module                            calls  forward    self   total      %
-----------------------------------------------------------------------
N                                     1   4.00ns  1.00ns  4.00ns  100.0
  fast: Fast [compiled] [shared]      1   3.00ns          3.00ns   75.0
[shared] N.fast is also N.quick
""")


def test_names_are_shown_from_the_line_above_on() -> None:
    # What the parent's line says already is left out; another root's name is not.
    profile = hand_built(
        {
            ("Net#2", "forward"): own(1),
            ("Net#2 > Net#2.a.b", "forward"): own(5),
            ("Net#2 > Net#2.a.b > Net.shared", "forward"): own(3),
            ("Net#2 > Net#2.a.b > Net#2.a.b.<ReLU>", "forward"): own(1),
        },
        {
            "Net#2": "Net",
            "Net#2.a.b": "B",
            "Net.shared": "Linear",
            "Net#2.a.b.<ReLU>": "ReLU",
        },
    )

    assert [line[:24].rstrip("1 ") for line in body(profile).splitlines()[2:]] == [
        "Net#2: Net",
        "  a.b: B",
        "    Net.shared: Linear",
        "    <ReLU>: ReLU",
    ]
