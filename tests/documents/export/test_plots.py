from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.helpers import STEP, hand_built, own
from tests.profile_of import profile_of
from torchprof_hooks.profiles.memory import MemorySummary, MemoryTotals


@pytest.fixture(autouse=True)
def pyplot() -> Iterator[Any]:
    """Draws nowhere."""
    matplotlib = pytest.importorskip("matplotlib", reason="of the extra `test`")
    matplotlib.use("agg")
    from matplotlib import pyplot  # noqa: PLC0415

    yield pyplot
    pyplot.close("all")


def widths(ax: Any) -> dict[str, list[float]]:
    """By label, the bars from the top down."""
    labels = [text.get_text() for text in ax.get_yticklabels()]
    return {
        label: [bars[at].get_width() for bars in ax.containers]
        for at, label in reversed(list(enumerate(labels)))
    }


def test_modules_by_their_own_time_in_each_phase() -> None:
    ax = STEP.plot()
    found = {n: [round(ms * 1e6) for ms in bars] for n, bars in widths(ax).items()}
    assert found == {  # forward, backward, recompute
        "Net.a": [30, 40, 0],
        "Net.b.a": [15, 20, 14],
        "Net": [10, 1, 0],
        "Net.b": [5, 0, 6],
    }
    assert list(found)[:2] == ["Net.a", "Net.b.a"]
    bar = ax.containers[1][3]
    assert bar.get_x() == pytest.approx(30e-6)  # behind forward


def test_layers_of_a_kind_are_one_bar() -> None:
    cells = {(f"Net.{n}", "forward"): own(10**6, calls=1) for n in range(30)}
    modules = {f"Net.{n}": "Linear" for n in range(30)}
    profile = hand_built(cells, modules)  # type: ignore[arg-type]
    assert widths(profile.plot("modules")) == {"Net.*": [30.0]}


def test_phases() -> None:
    found = widths(STEP.plot("phases"))
    assert found["forward"] == [pytest.approx(60e-6)]
    assert found["backward"] == [pytest.approx(65e-6)]
    assert found["optimizers"] == [pytest.approx(8e-6)]


def test_memory_of_one_call_of_each_module() -> None:
    memory = MemoryTotals(retained_bytes=6 * 2**20)
    profile = hand_built(
        {("Net", "forward"): own(10, calls=2, memory=memory)},
        {"Net": "Net"},
        memory=MemorySummary("cuda:0"),
    )
    assert widths(profile.plot("memory")) == {"Net": [3.0]}


def test_given_axes_are_drawn_on(pyplot: Any) -> None:
    _, (left, right) = pyplot.subplots(1, 2)
    assert STEP.plot("phases", ax=right) is right
    assert not left.containers


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(ValueError, match="kind must be 'modules', 'phases' or"):
        STEP.plot("module")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no module was called"):
        profile_of().plot()
    with pytest.raises(ValueError, match=r"memory was not measured: profile\(memory"):
        STEP.plot("memory")
    with pytest.raises(ValueError, match="memory was not measured"):
        replace(STEP, memory=MemorySummary(unavailable="no counter")).plot("memory")
