"""The public names."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import pytest

import torchprof_hooks
from tests.running import TORCH, python
from torchprof_hooks.kernel.core import CORE


def in_a_process(code: str, fresh: bool = False) -> str:
    done = python("-c", code, fresh=fresh, loaded=TORCH)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_public_name_is_there() -> None:
    code = """
from torchprof_hooks import *
print(FunctionHook.name, LinkHook.name)
import torchprof_hooks
for name in torchprof_hooks.__all__:
    assert getattr(torchprof_hooks, name) is getattr(torchprof_hooks, name)
    print(name)
"""
    expected = ["FunctionHook", "LinkHook", *torchprof_hooks.__all__]
    assert in_a_process(code).split() == expected
    assert set(torchprof_hooks.__all__) <= set(dir(torchprof_hooks))


def test_installing_it_adds_the_command_and_nothing_to_other_tools() -> None:
    """The plugin for pytest is there where a project asks for it."""
    found = distribution("torchprof-hooks").entry_points
    assert [(each.group, each.name) for each in found] == [
        ("console_scripts", "torchprof-hooks")
    ]


@pytest.fixture(scope="module")
def imported() -> list[str]:
    """What measuring modules imports of this package."""
    code = """
import sys, torch
before = set(sys.modules)
import torchprof_hooks
assert {"torchprof_hooks", "torchprof_hooks.version"} == set(sys.modules) - before
with torchprof_hooks.profile():
    torch.nn.Linear(2, 2)(torch.ones(1, 2))
print(*(name for name in set(sys.modules) - before if "torchprof" in name))
"""
    return in_a_process(code).split()


def test_measuring_imports_nothing_that_it_does_not_need(imported: list[str]) -> None:
    assert "torchprof_hooks.kernel.tracker" in imported
    package = "torchprof_hooks."
    unwanted = (
        *(f"{package}documents", f"{package}files.profile_file"),  # for reading
        *(f"{package}instruments.functions", f"{package}function_hook"),
        f"{package}kernel.torch_names.functions",
        *(
            f"{package}profiles.{name}"
            for name in ("cells", "data", "memory", "program")
        ),
    )
    assert [name for name in imported if name.startswith(unwanted)] == []
    hooks_on_nodes = f"{package}kernel.node_hooks" in imported
    assert hooks_on_nodes == (CORE.name == "python")


def test_the_kernels_cpp_knows_one_header_of_the_meters() -> None:
    native = Path(torchprof_hooks.__file__).parent / "kernel/native"
    included = {
        line.split('"')[1].removeprefix("../")
        for path in (*native.rglob("*.h"), native / "native.cpp")
        if path.parent.name != "meters"
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith('#include "') and "meter" in line
    }
    assert included == {"meters/meters.h"}
