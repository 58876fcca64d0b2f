"""What users see: names that signatures need are public, reports come from whatever has
a profile, and what the next release changes still works, with a warning."""

from __future__ import annotations

import dataclasses
import inspect
import io
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.helpers import hand_built, own
from torchprof_hooks import (
    Profile,
    ProfileFileError,
    ProfilerError,
    function_hooks,
    link_hooks,
    profile,
)

X = torch.ones(2, 3)

#: b costs more than a, and is called less often.
UNEVEN = hand_built(
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


@pytest.mark.parametrize("name", public_objects())
def test_classes_in_public_signatures_are_public(name: str) -> None:
    value = public_objects()[name]
    public = [each for each in public_objects().values() if isinstance(each, type)]
    namespace = {**vars(torchprof_hooks), **vars(typing)}
    for member in signatures(value):
        for hint in typing.get_type_hints(member, localns=namespace).values():
            for kind in classes_in(hint):
                ours = kind.__module__.startswith("torchprof_hooks")
                bases = {base for each in public for base in each.__mro__}
                is_public = kind in bases
                assert not ours or is_public, f"{name}: {kind}"


@pytest.mark.parametrize("name", public_objects())
def test_errors_in_public_docstrings_are_public(name: str) -> None:
    value = public_objects()[name]
    members = [value, *signatures(value)]
    texts = [inspect.getdoc(member) or "" for member in members if callable(member)]
    for text in texts:
        for raised in re.findall(r"^ +(\w+Error)(?:\W|$)", text, re.MULTILINE):
            known = raised in torchprof_hooks.__all__
            assert known or raised in vars(__import__("builtins")), f"{name}: {raised}"


def test_our_errors_have_one_base() -> None:
    for name in torchprof_hooks.__all__:
        value = getattr(torchprof_hooks, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, ProfilerError), name


def test_a_file_that_is_no_profile_raises_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("{}")
    with pytest.raises(ProfileFileError, match="is not a profile") as raised:
        Profile.load(path)
    assert isinstance(raised.value, (ProfilerError, ValueError))


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


def test_start_and_stop_measure_what_is_between() -> None:
    model, prof = nn.Linear(3, 3), profile()
    for _ in range(2):
        prof.start()
        model(X)
        prof.stop()
        model(X)
    [linear] = [row for row in prof.profile.rows() if row.kind == "module"]
    assert linear.calls == 2
    with pytest.raises(RuntimeError, match="was not entered in this thread"):
        prof.stop()


def test_what_was_taken_stays_in_the_profile() -> None:
    model, prof = nn.Linear(3, 3), profile()
    for calls in (1, 2):
        prof.start()
        for _ in range(calls):
            model(X)
        with pytest.raises(RuntimeError, match="while the profiler is stopped"):
            prof.take()
        prof.stop()
        [linear] = [row for row in prof.take().rows() if row.kind == "module"]
        assert linear.calls == calls
    [linear] = [row for row in prof.profile.rows() if row.kind == "module"]
    assert linear.calls == 3
    assert prof.take().is_empty


def first_words(table: str) -> list[str]:
    return [line.split()[0] for line in table.splitlines()]


@pytest.mark.parametrize(
    ("sort_by", "modules", "functions"),
    [
        (None, ["Net", "a:", "b:"], ["mul", "add", "(modules,"]),
        ("total", ["Net", "b:", "a:"], ["mul", "add", "(modules,"]),
        ("forward", ["Net", "b:", "a:"], ["mul", "add", "(modules,"]),
        ("self", ["Net", "b:", "a:"], ["mul", "add", "(modules,"]),
        ("calls", ["Net", "a:", "b:"], ["add", "mul", "(modules,"]),
    ],
)
def test_rows_are_sorted_as_asked_for(
    sort_by: Any, modules: list[str], functions: list[str]
) -> None:
    report = UNEVEN.report(full=True, sort_by=sort_by)
    tree, table, sites = report.split("\n\n")[-3:]
    assert first_words(tree)[3:] == modules
    assert first_words(table)[3:] == functions
    sorted_sites = [f"Net.{'a' if f == 'add' else 'b'}:" for f in functions[:2]]
    assert first_words(sites)[3:] == sorted_sites


def test_the_rows_that_are_shown_are_the_largest_by_what_they_are_sorted_by() -> None:
    def shown(sort_by: Any) -> list[str]:
        report = UNEVEN.report(full=True, max_rows=2, sort_by=sort_by)
        return first_words(report.split("\n\n")[-3])

    assert shown("total")[3:] == ["Net", "b:", "..."]
    assert shown("calls")[3:] == ["Net", "a:", "..."]


def test_so_many_rows_hold_for_functions_too() -> None:
    cells = {(f"Net > f{n}(2)", "forward"): own(100 - n) for n in range(30)}
    many = hand_built(cells, {"Net": "Net"})  # type: ignore[arg-type]
    functions, sites = many.report(full=True, max_rows=25).split("\n\n")[-2:]
    assert len(functions.splitlines()) == 3 + 25 + 1
    assert len(sites.splitlines()) == 3 + 25 + 1
    functions, sites = many.report(full=True).split("\n\n")[-2:]
    assert len(functions.splitlines()) == 3 + 20 + 1
    assert len(sites.splitlines()) == 3 + 10 + 1


@pytest.mark.parametrize(
    "print_report",
    [
        link_hooks.TimerHook().print_report,
        function_hooks.TimerHook().print_report,
        link_hooks.MemoryProfileHook("cpu").print_report,
        function_hooks.MemoryProfileHook("cpu").print_report,
    ],
    ids=["links", "functions", "link bytes", "function bytes"],
)
def test_a_unit_by_position_still_works(print_report: Callable[..., None]) -> None:
    by_keyword, by_position = io.StringIO(), io.StringIO()
    print_report(unit="auto_foreach", file=by_keyword)
    with pytest.warns(DeprecationWarning, match=r"write print_report\(unit=\.\.\., f"):
        print_report("auto_foreach", by_position)
    assert by_position.getvalue() == by_keyword.getvalue() != ""
    with pytest.raises(TypeError, match="each once"):
        print_report("auto", unit="auto")
    signature = inspect.signature(print_report)
    assert signature.parameters["unit"].kind is inspect.Parameter.KEYWORD_ONLY
