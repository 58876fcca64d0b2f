"""Names of calls show shapes; calls of a function in one module that have many of them
are one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.build import Cells, profile_of, timed
from tests.fake_clock import FakeClock
from torchprof_hooks import Profile
from torchprof_hooks.profiles.many_shapes import SHAPES_KEPT, with_common_names
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import function_call_name


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (None, "f()"),
        ([(32, 64), (256, 64), (256,)], "f(32x64, 256x64, 256)"),
        ([()], "f(scalar)"),
        ([[4], [4]], "f(4, 4)"),
        ([(4,)] * 3, "f(3 * 4)"),
        ([(), (), (), (1,)], "f(3 * scalar, 1)"),
        ([(1,), *[(2,)] * 4, (1,)], "f(1, 4 * 2, 1)"),
        ([(1,), (2,), (3,), (4,), (5,), (6,), (7,)], "f(1, 2, 3, 4, 5, 6, ...)"),
        ([(n // 3,) for n in range(18)], "f(3 * 0, 3 * 1, 3 * 2, 3 * 3, 3 * 4, 3 * 5)"),
    ],
)
def test_the_name_of_a_call_shows_the_shapes_of_its_tensors(
    shapes: list[tuple[int, ...]] | None, expected: str
) -> None:
    assert function_call_name("f", shapes) == expected


OUTER = {"Net": "Net", "Net.a": "Linear", "Net.b": "Linear"}


def called(names: Iterable[str], around: str = "Net > Net.a > ") -> Profile:
    cells: Cells = {
        (around + name, "forward"): timed(10 + n) for n, name in enumerate(names)
    }
    profile = profile_of(cells, OUTER)
    infos = {name: with_shapes(name, info) for name, info in profile.modules.items()}
    return replace(profile, modules=infos)


def with_shapes(name: str, info: ModuleInfo) -> ModuleInfo:
    """The shapes that a name like ``f(3x8, 8)`` tells, or ``f(3x8, ...)``."""
    if info.kind != "function" or not re.fullmatch(r"\w+\([\dx, ]+(\.{3})?\)", name):
        return info
    texts = name.partition("(")[2].rstrip(".)").removesuffix(", ").split(", ")
    return replace(info, shapes=tuple(tuple(map(int, t.split("x"))) for t in texts))


def names_in(profile: Profile) -> list[str]:
    return sorted(path[-1] for path, _ in with_common_names(profile).cells)


LENGTHS = range(3, 3 + SHAPES_KEPT + 2)


@pytest.mark.parametrize(
    ("names", "common"),
    [
        ([f"f({n}x8)" for n in LENGTHS], ["f (6 shapes)"]),
        ([f"f(3x{n}x6, 6x6)" for n in (97, 5, 8, 31, 9)], ["f (5 shapes)"]),
        (["f(1)", "f(2)", "f(3)", "f(4)"], ["f(1)", "f(2)", "f(3)", "f(4)"]),
        (
            [*(f"f({n}x8)" for n in LENGTHS), "f(8)", "f(other shapes)", "g(3x8)"],
            ["f (7 shapes)", "f(other shapes)", "g(3x8)"],
        ),
        ([f"conv{n}d(8)" for n in range(6)], [f"conv{n}d(8)" for n in range(6)]),
        (["f", "f()"], ["f", "f()"]),
    ],
)
def test_names(names: list[str], common: list[str]) -> None:
    assert names_in(called(names)) == common


def test_what_optimizers_call_is_left_apart() -> None:
    names = [f"add_({n}x8)" for n in LENGTHS]
    assert names_in(called(names, "(optimizer) SGD > ")) == sorted(names)


def test_modules_are_told_apart() -> None:
    first, second = (
        called((f"f({n + k})" for n in LENGTHS), f"Net > Net.{name} > ")
        for name, k in (("a", 0), ("b", 20))
    )
    found = {path for path, _ in with_common_names(first.merge(second)).cells}
    assert found == {("Net", "Net.a", "f (6 shapes)"), ("Net", "Net.b", "f (6 shapes)")}


def test_numbers_add_up_and_the_profile_stays_exact() -> None:
    names = [f"f({n}x8)" for n in LENGTHS]
    exact = called(names)
    inner = called(names, "Net > Net.a > g(3x3) > ")
    profile = exact.merge(inner)
    common = with_common_names(profile)
    sums = timed(*(10 + n for n in range(len(names))))
    assert dict(common.cells) == {
        (("Net", "Net.a", "f (6 shapes)"), "forward"): sums,
        (("Net", "Net.a", "g(3x3)", "f (6 shapes)"), "forward"): sums,
    }
    assert (common.wall_ns, common.steps) == (profile.wall_ns, profile.steps)
    assert len(profile.cells) == 2 * len(names)
    assert with_common_names(called(names[:SHAPES_KEPT])) == called(names[:SHAPES_KEPT])


def test_the_report_has_one_line(clock: FakeClock) -> None:
    model = nn.Linear(4, 2)
    with torchprof_hooks.profile(functions=True) as prof:
        for length in range(5, 30):
            model(torch.ones(3, length, 4))
            clock.advance(1)
    lines = [line for line in prof.report(full=True).splitlines() if "Linear:" in line]
    assert [line.split()[:5] for line in lines] == [
        ["Linear:", "linear", "(25", "shapes)", "25"]
    ]
    assert len([r for r in prof.profile.rows("call") if r.class_name == "linear"]) == 25
