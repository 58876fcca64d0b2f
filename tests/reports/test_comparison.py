from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import FUNCTIONS, hand_built, own, table, timed
from tests.profiles.test_merge import profiles
from torchprof_hooks import Profile
from torchprof_hooks.profiles.compare import compare
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.reports.comparison import render

FORWARD: Phase = "forward"
OUTSIDE = {"(outside modules)": ModuleInfo(kind="outside")}


def run(durations: Mapping[str, Sequence[int]], steps: int = 3) -> Profile:
    """A run of 100 ns per step, in which modules were called for so many ns each."""
    rows = {(name, FORWARD): timed(*of_row) for name, of_row in durations.items()}
    rest = own(100 * steps - sum(t.self_ns for t in rows.values()), calls=0)
    return hand_built(
        {**rows, ("(outside modules)", "outside"): rest},
        {**dict.fromkeys(durations, "Linear"), **OUTSIDE},
        steps=steps,
    )


def test_a_whole_report() -> None:
    # Of a, the slowest is left out: 4 and 8. Of noisy, too: means 15 and 16, each with
    # an error of 5 and one degree of freedom, together 2. There are 6 rows in both, so
    # that t is taken at a risk of 1 / 6 %: 20.8 (in tables 17.3), times sqrt(2 * 5**2).
    old = run(
        {
            "Net.a": (4, 4, 9),
            "Net.b": (8, 8, 8),
            "Net.c": (1000, 1000),
            "Net.noisy": (10, 20, 30),
            "Net.once": (5,),
            "Net.zero": (0, 0),
            "Net.gone": (1, 1),
        }
    )
    new = run(
        {
            "Net.a": (8, 8, 8, 99),
            "Net.b": (6, 6, 6),
            "Net.c": (1010, 1010),
            "Net.noisy": (11, 21, 30),
            "Net.once": (50,),
            "Net.zero": (0, 0),
            "Net.new": (1, 1),
        },
        steps=2,
    )

    assert render(compare(old, new), width=88) == table("""
3 steps of 100.00ns before, 2 steps of 100.00ns now
old, new: mean time of a call, with inner calls, without the slowest; noise: what chance
  explains, at a risk of about 1 % for all rows together; slower, faster: by more than
  noise and by more than 5 %

module       phase      old      new    change       %     noise  calls
-------------------------------------------------------------------------------
Net.a      forward   4.00ns   8.00ns   +4.00ns  +100.0    0.00ns   3, 4  slower
Net.b      forward   8.00ns   6.00ns   -2.00ns   -25.0    0.00ns      3  faster
Net.c      forward   1.00us   1.01us   +0.01us    +1.0    0.00us      2
Net.noisy  forward  15.00ns  16.00ns   +1.00ns    +6.7  147.04ns      3
Net.once   forward   5.00ns  50.00ns  +45.00ns  +900.0   unknown      1
Net.zero   forward   0.00ns   0.00ns    0.00ns            0.00ns      2
only before: Net.gone (forward)
only now: Net.new (forward)

1 of 6 rows is slower
""")


def test_rows_that_are_slower_are_never_left_out() -> None:
    old = run({f"Net.{i}": (10, 10) for i in range(9)})
    new = run({f"Net.{i}": (30, 30) if i < 3 else (10, 10) for i in range(9)})

    text = render(compare(old, new), max_rows=1)

    assert text.count("  slower\n") == 3
    assert "... 6 more rows, not slower" in text
    assert text.endswith("3 of 9 rows are slower")


def test_the_largest_difference_comes_first_and_what_is_faster_after_slower() -> None:
    old = run({"Net.a": (10, 10), "Net.b": (10, 10), "Net.c": (90, 90)})
    new = run({"Net.a": (20, 20), "Net.b": (30, 30), "Net.c": (10, 10)})

    lines = render(compare(old, new)).splitlines()[6:9]

    assert [line.split()[0] for line in lines] == ["Net.b", "Net.a", "Net.c"]
    assert [line.split()[-1] for line in lines] == ["slower", "slower", "faster"]


def test_nothing_to_compare() -> None:
    text = render(compare(run({"Old": (1, 1)}), run({"New": (1, 1)})))

    assert text == table("""
3 steps of 100.00ns before, 3 steps of 100.00ns now
only before: Old (forward)
only now: New (forward)

nothing to compare: no row was called in both profiles
""")
    assert render(compare(Profile(), Profile())) == table("""
0.00ns without steps before, 0.00ns without steps now

nothing to compare: no row was called in both profiles
""")


def test_long_lists_of_names_end() -> None:
    old = run({f"Net.{i}": (1, 1) for i in range(9)})

    text = render(compare(old, Profile()), max_rows=2)

    assert "only before: Net.0 (forward), Net.1 (forward), ... 7 more\n" in text


def test_it_says_what_makes_two_profiles_hard_to_compare() -> None:
    plain = run({"Net": (1, 1)})
    on_device = replace(plain, devices=("cuda",))

    assert "times are those of the host" in render(compare(plain, on_device))
    assert "times are those of the host" not in render(compare(plain, plain))
    assert "only in the new profile were functions measured" in render(
        compare(plain, FUNCTIONS)
    )
    assert "only in the old profile" in render(compare(FUNCTIONS, plain))


@given(profiles, profiles, st.integers(1, 5), st.integers(20, 150))
def test_any_two_profiles_can_be_compared(
    old: Profile, new: Profile, max_rows: int, width: int
) -> None:
    assert render(compare(old, new), width=width, max_rows=max_rows)
