"""The two cores are one product: the same programs, the same numbers."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stderr
from io import StringIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.build import profile_of
from tests.cores import NATIVE_CORE
from tests.running import python
from tests.thorough import IS_THOROUGH
from torchprof_hooks import profile
from torchprof_hooks.kernel.core import CORE
from torchprof_hooks.kernel.native import build, verify
from torchprof_hooks.kernel.native import compiler as compiling
from torchprof_hooks.kernel.native.build import cached_path, choose, native_module

ROOT = Path(__file__).parents[2]
SEEDS = 25 if IS_THOROUGH else 6


def run(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program, with these variables besides."""
    environment = {**os.environ, "TORCHPROF_HOOKS_CORE": "", **variables}
    return python("-W", "ignore", *args, environment=environment, folder=ROOT)


def booked_by(core: str) -> list[Any]:
    done = run(
        *("-m", "tests.attribution.random_programs", str(SEEDS)),
        TORCHPROF_HOOKS_CORE=core,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@NATIVE_CORE
def test_random_programs_are_booked_alike_by_both() -> None:
    for native, other in zip(booked_by("native"), booked_by("python"), strict=True):
        assert native == other, native[:2]


ALL_OPTIONS = """
import torch, torchprof_hooks
from torchprof_hooks.link_hooks import MemoryProfileHook
wanted = dict(functions=True, memory=True, kernels=True)
with torchprof_hooks.profile(**wanted) as prof:
    for _ in range(4):
        torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()
print(*prof.profile.not_measured, prof.profile.memory.unavailable, sep="\\n")
print(*[row.name for row in prof.profile.rows() if row.kind == "module"])
try:
    MemoryProfileHook("cpu")
except torchprof_hooks.MemoryUnavailableError as error:
    print(error)
"""


def test_without_the_native_core_modules_are_measured_and_the_rest_is_told() -> None:
    done = run("-c", ALL_OPTIONS, TORCHPROF_HOOKS_CORE="python")
    missing = "they need the native core, which does not run: TORCHPROF_HOOKS_CORE="
    how = "(install a wheel of this package, or a C++ compiler)"
    told = [line for line in done.stdout.splitlines() if "devices" not in line]
    named = [
        f"{what}: {missing}python {how}"
        for what in ("functions", "kernels", "bytes", "bytes")
    ]
    assert told == [*named[:3], "Linear", named[3]], done.stderr


# Which one runs

MEASURED = """
import torch, torchprof_hooks
with torchprof_hooks.profile() as prof:
    torch.nn.Linear(2, 2)(torch.ones(2))
print(prof.profile.core, prof.profile.core_reason, sep="|")
"""


@pytest.mark.slow
def test_a_program_goes_on_without_the_native_core(cache: Path, tmp_path: Path) -> None:
    broken = compiler(tmp_path, "echo 'x.cpp:3: error: no good' >&2; exit 1")
    done = run("-c", MEASURED, CXX=broken)
    core, _, why = done.stdout.strip().partition("|")
    assert core == "python"
    assert why.endswith("cannot build the native core: x.cpp:3: error: no good")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("python", "TORCHPROF_HOOKS_CORE=python"),
        ("c", "TORCHPROF_HOOKS_CORE must be 'native' or 'python', not 'c'"),
    ],
)
def test_the_environment_chooses(
    value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHPROF_HOOKS_CORE", value)
    assert choose() == ("python", None, reason)


def test_reports_say_which_core_has_measured() -> None:
    with profile() as prof:
        nn.Linear(2, 2)(torch.ones(2))
    found = prof.profile
    assert found.core == CORE.name
    assert profile_of().merge(found).core == CORE.name
    other = profile_of(core="other", core_reason="no")
    assert other.merge(found).core == ", ".join(sorted((CORE.name, "other")))
    assert f"{CORE.name} core" in found.report(full=True)


# Building. What stands for a compiler is a program that does what one would do.


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHPROF_HOOKS_CORE", raising=False)
    return tmp_path / "torchprof_hooks"


def compiler(tmp_path: Path, script: str) -> str:
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def copying(tmp_path: Path, takes_s: float = 0) -> str:
    """Takes its time, and then has what another compiler has made."""
    assert CORE.module is not None
    copy = f'for last; do :; done; cp "{CORE.module.__file__}" "$last"'
    return compiler(tmp_path, f"sleep {takes_s}; {copy}")


@pytest.fixture
def copies(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler is one that does its work."""
    monkeypatch.setenv("CXX", copying(tmp_path))


@pytest.fixture
def fails(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler is one that does not."""
    monkeypatch.setenv("CXX", compiler(tmp_path, "exit 1"))


def _build(answers: Connection) -> None:
    with redirect_stderr(StringIO()) as said:
        path = native_module().__file__
    answers.send((path, said.getvalue()))


@pytest.mark.slow
@NATIVE_CORE
def test_several_processes_build_one(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", copying(tmp_path, takes_s=0.3))
    forks = multiprocessing.get_context("fork")
    ours, theirs = forks.Pipe(duplex=False)
    processes = [forks.Process(target=_build, args=(theirs,)) for _ in range(3)]
    for process in processes:
        process.start()
    theirs.close()
    results = [ours.recv() for _ in processes]
    for process in processes:
        process.join()
    assert [path for path, _ in results] == [str(cached_path())] * 3
    [said] = [said for _, said in results if said]
    assert said == (
        "torchprof_hooks: building the native core for this torch, once (it takes "
        f"about a minute, and is kept in {cache})\n"
    )
    assert len(list(cache.glob("*.so"))) == 1
    assert cache.stat().st_mode & 0o777 == 0o700


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.slow
@NATIVE_CORE
def test_at_a_terminal_dots_show_that_building_goes_on(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", copying(tmp_path, takes_s=0.5))
    monkeypatch.setattr(build, "DOT_EVERY_S", 0.01)
    with redirect_stderr(_Terminal()) as said:
        native_module()
    first, dots, *rest = said.getvalue().split("\n")
    assert "building the native core" in first
    assert set(dots) == {"."}
    assert rest == [""]


@pytest.mark.slow
@NATIVE_CORE
def test_building_is_no_part_of_the_first_profile(cache: Path, tmp_path: Path) -> None:
    program = """
import time, torch, torchprof_hooks
began_ns = time.perf_counter_ns()
with torchprof_hooks.profile() as prof:
    torch.nn.ReLU()(torch.ones(1))
all_ns = time.perf_counter_ns() - began_ns
print(all_ns - prof.profile.wall_ns)
"""
    done = run("-c", program, CXX=copying(tmp_path, takes_s=1))
    assert "building the native core" in done.stderr
    assert int(done.stdout) > 1e9


def test_a_binary_that_cannot_be_loaded_is_built_once_and_stays(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder of which nothing may be run."""
    other = shlex.quote(str(torch._C.__file__))  # a module of another name
    script = f'echo >> built; for last; do :; done; cp {other} "$last"'
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    monkeypatch.chdir(tmp_path)
    for _ in range(3):
        core = choose()
        assert core.reason.startswith("the native core cannot be loaded: ")
        assert "\n" not in core.reason
    assert (tmp_path / "built").read_text() == "\n"
    assert cached_path().exists()


#: What a compiler does -> why there is no native core.
BROKEN = {
    "echo 'x.cpp:3: error: no good' >&2; exit 1": "core: x.cpp:3: error: no good",
    "exit 0": "cannot build the native core: no message",
    "exit 3": "cannot build the native core: no message",
    "exec sleep 1000": "has not built the native core in 0 s",
}


@pytest.mark.parametrize("script", BROKEN)
def test_a_broken_compiler(
    script: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    monkeypatch.setattr(compiling, "LONGEST_S", 0.3)
    core = choose()
    assert core.name == "python"
    assert core.reason.endswith(BROKEN[script])
    assert not list(cache.glob("*.so"))


def test_no_compiler(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    why = "there is no C++ compiler (set CXX, or install g++)"
    assert choose() == ("python", None, why)


@NATIVE_CORE
def test_what_is_built_needs_no_compiler_any_more(
    copies: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native_module()
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose().name == "native"


def test_a_cache_that_cannot_be_written(
    fails: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "compiler"))  # a file
    assert choose().reason.startswith("no cache for the native core: ")


def test_a_cache_that_others_may_write_into(fails: None, cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    why = f"others may write into {cache}: chmod 700 {cache}"
    assert choose() == ("python", None, why)


@pytest.mark.parametrize("path", ["cache", "", "~/cache"])
def test_a_cache_that_is_no_absolute_path_is_none(
    path: str, fails: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", path)
    folder = tmp_path / "home" / ".cache" / "torchprof_hooks"
    assert cached_path().parent == folder
    assert not Path("cache").exists()


@NATIVE_CORE
def test_a_module_that_says_it_is_for_another_torch(
    copies: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "TORCH_VERSION", "2.999.0")
    assert re.search(r"built for torch .*2[.]999", choose().reason)


@pytest.mark.slow
@NATIVE_CORE
def test_it_can_be_built_beforehand(cache: Path, tmp_path: Path) -> None:
    variables = {"CXX": copying(tmp_path), "XDG_CACHE_HOME": str(cache.parent)}
    for says_so in (True, False):
        done = run("-m", "torchprof_hooks", "build", **variables)
        assert done.returncode == 0
        assert "the native core is in " in done.stdout
        assert ("building" in done.stderr) == says_so
    variables["CXX"] = compiler(tmp_path, "exit 1")
    for built in cache.glob("*.so"):
        built.unlink()
    done = run("-m", "torchprof_hooks", "build", **variables)
    assert (done.returncode, done.stdout) == (1, "")
    assert "torchprof_hooks: no native core: " in done.stderr


@pytest.mark.slow
def test_what_was_built_can_be_removed(cache: Path) -> None:
    cache.mkdir(mode=0o700)
    for name in ("of-this-torch.so", "of-another-torch.so"):
        (cache / f"{build.NAME}-{name}").touch()
    (cache / "of somebody else").mkdir()
    for left in (["of somebody else"], []):
        done = run("-m", "torchprof_hooks", "build", "--clear")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"torchprof_hooks: removed {cache}\n"
        assert [path.name for path in cache.glob("*")] == left
        if left:
            (cache / left[0]).rmdir()
    assert not cache.exists()


@pytest.mark.thorough
@pytest.mark.parametrize("compiles", [True, False])
def test_it_is_built_when_the_package_is_installed(
    cache: Path, tmp_path: Path, compiles: bool
) -> None:
    if compiles and CORE.module is None:
        pytest.skip(f"needs the native core: {CORE.reason}")
    pytest.importorskip("setuptools", minversion="77")
    (folder := tmp_path / "copy").mkdir()
    root = Path(build.__file__).parents[3]
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, folder)
    shutil.copytree(root / "torchprof_hooks", folder / "torchprof_hooks")
    command = copying(tmp_path) if compiles else compiler(tmp_path, "exit 1")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_py"],
        cwd=folder,
        env={**os.environ, "CXX": command},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(folder, "build", "lib", "torchprof_hooks", "profiler.py").exists()
    assert len(list(cache.glob("*.so"))) == compiles
