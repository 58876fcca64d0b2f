"""What users see: public names are few, and whatever has a profile has reports."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.build import own, profile_of
from torchprof_hooks import (
    Profile,
    ProfilerError,
    profile,
)

X = torch.ones(2, 3)

#: b costs more than a, and is called less often.
UNEVEN = profile_of(
    {
        ("Net", "forward"): own(10),
        ("Net > Net.a", "forward"): own(20, calls=9),
        ("Net > Net.b", "forward"): own(50, calls=2),
        ("Net > Net.a > add(2)", "forward"): own(5, calls=8),
        ("Net > Net.b > mul(2)", "forward"): own(15, calls=1),
    },
    {"Net": "Net", "Net.a": "A", "Net.b": "B"},
)


def test_public_names_are_few() -> None:
    """Each is a promise. Types that are only attributes of what is returned are not
    public: who uses them has no need to import them."""
    assert len(torchprof_hooks.__all__) <= 32


def test_our_errors_have_one_base() -> None:
    for name in torchprof_hooks.__all__:
        value = getattr(torchprof_hooks, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, ProfilerError), name


def test_every_profile_has_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with profile() as prof:
        nn.Linear(3, 3)(X)
    prof.profile.save(tmp_path / "profile.json")
    loaded = Profile.load(tmp_path / "profile.json")
    assert loaded == prof.profile
    assert "Linear" in loaded.report()
    assert prof.report() == prof.profile.report() == str(prof) == str(loaded)
    for reportable in (prof, loaded):
        reportable.print_report()
        assert capsys.readouterr().out == loaded.report() + "\n"
        file = io.StringIO()
        options: dict[str, Any] = {"full": True, "unit": "ns", "width": 60}
        reportable.print_report(file=file, **options)
        text = loaded.report(**options)
        assert file.getvalue() == text + "\n"


def calls(measured: Profile) -> int:
    [linear] = [row for row in measured.rows() if row.kind == "module"]
    return linear.calls


def test_start_and_stop() -> None:
    model, prof = nn.Linear(3, 3), profile()
    for measured in (1, 2):
        prof.start()
        model(X)
        prof.stop()
        model(X)
        assert calls(prof.profile) == measured
    with pytest.raises(RuntimeError, match="was not entered in this thread"):
        prof.stop()


def first_words(table: str) -> list[str]:
    return [line.split()[0] for line in table.splitlines()]


@pytest.mark.parametrize(
    ("sort_by", "modules", "functions"),
    [
        (None, "ab", ["mul", "add"]),
        ("total", "ba", ["mul", "add"]),
        ("forward", "ba", ["mul", "add"]),
        ("self", "ba", ["mul", "add"]),
        ("calls", "ab", ["add", "mul"]),
    ],
)
def test_rows_are_sorted_as_asked_for(
    sort_by: Any, modules: str, functions: list[str]
) -> None:
    report = UNEVEN.report(full=True, sort_by=sort_by)
    tree, table, sites = report.split("\n\n")[-4:-1]
    assert first_words(tree)[3:] == ["Net", f"{modules[0]}:", f"{modules[1]}:"]
    assert first_words(table)[3:] == [*functions, "(modules,"]
    sorted_sites = [f"Net.{'a' if f == 'add' else 'b'}:" for f in functions]
    assert first_words(sites)[3:] == sorted_sites
    if sort_by:  # what is shown is what comes first
        report = UNEVEN.report(full=True, max_rows=2, sort_by=sort_by)
        assert first_words(report.split("\n\n")[-4])[3:] == [
            "Net",
            f"{modules[0]}:",
            "...",
        ]
