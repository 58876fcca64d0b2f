from __future__ import annotations

import pytest

from torchprof_hooks.profiles.names import (
    GROUPINGS,
    check_grouping,
    function_call_name,
)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (None, "f()"),
        ([], "f()"),
        ([(32, 64), (256, 64), (256,)], "f(32x64, 256x64, 256)"),
        ([()], "f(scalar)"),
        ([(2, 0, 3), ()], "f(2x0x3, scalar)"),
        ([[4], [4]], "f(4, 4)"),
        ([(4,)] * 3, "f(3 * 4)"),
        ([(32, 64)] * 50, "f(50 * 32x64)"),
        ([(), (), (), (1,)], "f(3 * scalar, 1)"),
        ([(1,), *[(2,)] * 4, (1,)], "f(1, 4 * 2, 1)"),
        ([(1,), (2,), (3,), (4,), (5,), (6,)], "f(1, 2, 3, 4, 5, 6)"),
        ([(1,), (2,), (3,), (4,), (5,), (6,), (7,)], "f(1, 2, 3, 4, 5, 6, ...)"),
        ([(n // 2,) for n in range(1000)], "f(0, 0, 1, 1, 2, 2, ...)"),
        ([(n // 3,) for n in range(18)], "f(3 * 0, 3 * 1, 3 * 2, 3 * 3, 3 * 4, 3 * 5)"),
    ],
)
def test_the_name_of_a_call_shows_the_shapes_of_its_tensors(
    shapes: list[tuple[int, ...]] | None, expected: str
) -> None:
    assert function_call_name("f", shapes) == expected


def test_how_rows_may_be_grouped() -> None:
    for by in ("module", "class"):
        check_grouping(by)
    for by in ("module", "class", "function", "call"):
        check_grouping(by, GROUPINGS)
    for wrong, allowed, said in [
        ("function", ("module", "class"), "'module' or 'class', not 'function'"),
        ("apply", GROUPINGS, "'module', 'class', 'function' or 'call', not 'apply'"),
    ]:
        with pytest.raises(ValueError, match=f"by must be {said}"):
            check_grouping(wrong, allowed)
