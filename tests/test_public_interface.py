"""What users see: names that signatures need are public, reports come from whatever has
a profile, and what the next release changes still works, with a warning."""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import io
import re
import typing
from collections.abc import Iterator
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
    function_hooks,
    link_hooks,
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


def public_objects() -> dict[str, Any]:
    found = {}
    for module in (torchprof_hooks, link_hooks, function_hooks):
        for name in module.__all__:
            found[f"{module.__name__}.{name}"] = getattr(module, name)
    return found


def signatures(value: Any) -> Iterator[Any]:
    """What has annotations: functions; of classes, fields and all public methods."""
    has_fields = dataclasses.is_dataclass(value) or hasattr(value, "_fields")
    if value is torchprof_hooks.Program:  # most of it is for reports
        return
    if has_fields:
        yield value
    is_made_by_users = not has_fields and value is not torchprof_hooks.Profiler
    members = [value]
    for kind in value.__mro__ if isinstance(value, type) else ():
        if kind.__module__.startswith("torchprof_hooks"):
            members += [member for name, member in vars(kind).items() if name[0] != "_"]
            if is_made_by_users:
                members.append(vars(kind).get("__init__"))
    for member in members:
        function = getattr(member, "fget", getattr(member, "__func__", member))
        if inspect.isfunction(function):
            yield function


def classes_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and not typing.get_args(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from classes_in(part)


OBJECTS = public_objects()


@pytest.mark.parametrize("name", OBJECTS)
def test_what_public_signatures_and_docstrings_name_is_public(name: str) -> None:
    value = OBJECTS[name]
    public = [each for each in OBJECTS.values() if isinstance(each, type)]
    bases = {base for each in public for base in each.__mro__}
    namespace = {**vars(torchprof_hooks), **vars(typing)}
    for member in signatures(value):
        for hint in typing.get_type_hints(member, localns=namespace).values():
            for kind in classes_in(hint):
                ours = kind.__module__.startswith("torchprof_hooks")
                assert not ours or kind in bases, f"{name}: {kind}"
    for member in [value, *signatures(value)]:
        text = (inspect.getdoc(member) or "") if callable(member) else ""
        for raised in re.findall(r"^ +(\w+Error)(?:\W|$)", text, re.MULTILINE):
            known = raised in torchprof_hooks.__all__
            assert known or hasattr(builtins, raised), f"{name}: {raised}"


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


def test_start_stop_and_take() -> None:
    model, prof = nn.Linear(3, 3), profile()
    for times in (1, 2):
        prof.start()
        for _ in range(times):
            model(X)
        with pytest.raises(RuntimeError, match="while the profiler is stopped"):
            prof.take()
        prof.stop()
        model(X)
        assert calls(prof.take()) == times
    assert calls(prof.profile) == 3  # what was taken stays in it
    assert prof.take().is_empty
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
    tree, table, sites = report.split("\n\n")[-3:]
    assert first_words(tree)[3:] == ["Net", f"{modules[0]}:", f"{modules[1]}:"]
    assert first_words(table)[3:] == [*functions, "(modules,"]
    sorted_sites = [f"Net.{'a' if f == 'add' else 'b'}:" for f in functions]
    assert first_words(sites)[3:] == sorted_sites
    if sort_by:  # what is shown is what comes first
        report = UNEVEN.report(full=True, max_rows=2, sort_by=sort_by)
        assert first_words(report.split("\n\n")[-3])[3:] == [
            "Net",
            f"{modules[0]}:",
            "...",
        ]
