"""Charts of a profile, by what is on their axes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.build import MS, STEP, ms, profile_of
from torchprof_hooks import Profile
from torchprof_hooks.profiles.memory import MemorySummary, MemoryTotals


@pytest.fixture(autouse=True)
def pyplot() -> Iterator[Any]:
    """Draws nowhere."""
    matplotlib = pytest.importorskip("matplotlib", reason="of the extra `test`")
    matplotlib.use("agg")
    from matplotlib import pyplot  # noqa: PLC0415

    yield pyplot
    pyplot.close("all")


def widths(ax: Any) -> list[tuple[Any, ...]]:
    """Each label with the widths of its bars, from the top down."""
    labels = [text.get_text() for text in ax.get_yticklabels()]
    return [
        (label, *(bars[at].get_width() for bars in ax.containers))
        for at, label in reversed(list(enumerate(labels)))
    ]


def test_modules_by_their_own_time_in_each_phase() -> None:
    ax = STEP.plot()
    assert [(name, *(round(w * MS) for w in bars)) for name, *bars in widths(ax)] == [
        ("Net.a", 30, 40, 0),  # forward, backward, recompute
        ("Net.b.a", 15, 20, 14),
        ("Net.b", 5, 0, 6),
        ("Net", 10, 1, 0),
    ]
    # Behind forward, and behind both.
    assert ax.containers[1][3].get_x() == pytest.approx(30e-6)
    assert ax.containers[2][2].get_x() == pytest.approx(35e-6)


def test_phases() -> None:
    found = dict(widths(STEP.plot("phases")))
    assert found["forward"] == pytest.approx(60e-6)
    assert found["backward"] == pytest.approx(65e-6)
    assert found["optimizers"] == pytest.approx(8e-6)


def test_memory_of_one_call_of_each_module() -> None:
    memory = MemoryTotals(retained_bytes=6 * 2**20)
    cells = {("Net", "forward"): ms(10, 2, memory=memory)}
    profile = profile_of(cells, {"Net": "Net"}, memory=MemorySummary("cuda:0"))
    assert widths(profile.plot("memory")) == [("Net", 3.0)]


@pytest.mark.parametrize(
    ("profile", "kind", "said"),
    [
        (STEP, "module", "kind must be 'modules', 'phases' or"),
        (Profile(), "modules", "no module was called"),
        (STEP, "memory", r"memory was not measured: profile\(memory"),
        (
            replace(STEP, memory=MemorySummary(unavailable="no counter")),
            "memory",
            "memory was not measured",
        ),
    ],
    ids=["no chart", "nothing", "no memory", "no counter of memory"],
)
def test_what_cannot_be_drawn_is_said(profile: Profile, kind: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        profile.plot(kind)
