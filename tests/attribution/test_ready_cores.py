"""The binaries that a wheel brings: which is taken, and that none is trusted."""

from __future__ import annotations

import ast
import json
import shutil
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.cores import NATIVE_CORE
from tests.running import python
from torchprof_hooks.kernel.core import CORE
from torchprof_hooks.kernel.native import build, verify
from torchprof_hooks.kernel.native.build import choose, ready_path
from torchprof_hooks.kernel.native.compiler import (
    NotBuiltError,
    run_compiler,
)
from torchprof_hooks.kernel.torch_names.autograd import sequence_number
from torchprof_hooks.kernel.torch_names.tensors import storage_of
from torchprof_hooks.kernel.torch_names.tried import minor

SUFFIX = EXTENSION_SUFFIXES[0]
MINOR = minor(torch.__version__)


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of binaries of an installed wheel, which has one for this torch; there
    is no compiler, and no home."""
    folder = tmp_path / "binaries"
    folder.mkdir()
    if CORE.module is not None:
        path = str(CORE.module.__file__)
        shutil.copy(path, folder / f"torch-{MINOR}{SUFFIX}")
    monkeypatch.setattr(build, "READY", folder)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, value in {
        "TORCHPROF_HOOKS_CORE": "",
        "CXX": "",
        "XDG_CACHE_HOME": "/proc/none",
    }.items():
        monkeypatch.setenv(name, value)
    return folder


@NATIVE_CORE
def test_it_is_taken_without_a_compiler_and_without_a_word(
    ready: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    core = choose()
    assert core.name == "native"
    assert core.module is not None
    assert core.module.__file__ == str(ready / f"torch-{MINOR}{SUFFIX}")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("version", ["2.999.0", f"{MINOR}.0a0+git1", f"{MINOR}.0.dev1"])
def test_a_torch_that_it_has_none_for(
    version: str,
    ready: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Versions before a release have the interface of none."""
    monkeypatch.setattr(build, "TORCH_VERSION", version)
    core = choose()
    assert core.name == "python"
    none = f"this package has no native core for torch {version} and cpython-3"
    assert core.reason.startswith(none)
    assert "; no cache for the native core: " in core.reason
    said = capsys.readouterr().err
    assert said == f"torchprof_hooks: the core in Python measures: {core.reason}\n"


@NATIVE_CORE
@pytest.mark.parametrize("local", ["", "+cpu", "+cu130"])
def test_builds_of_a_minor_version_have_one_binary(
    local: str, ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "TORCH_VERSION", f"{MINOR}.9{local}")
    assert ready_path().parent == ready


@NATIVE_CORE
def test_one_that_does_not_fit_is_not_used(
    ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is built in its place is; else, reasons are given for both."""
    fitting: list[str] = []

    def why_not(module: object) -> str:
        path = str(getattr(module, "__file__", ""))
        fitting.append(path)
        return "no" if path.startswith(str(ready)) else ""

    monkeypatch.setattr(build, "why_not", why_not)
    assert choose().reason.startswith("no; no cache for the native core: ")
    monkeypatch.undo()
    monkeypatch.setattr(build, "why_not", why_not)
    monkeypatch.setattr(build, "READY", ready)
    core = choose()
    assert core.name == "native"
    assert core.module is not None
    assert not str(core.module.__file__).startswith(str(ready))


def test_a_file_that_is_none(ready: Path) -> None:
    (ready / f"torch-{MINOR}{SUFFIX}").write_text("nothing")
    assert choose().reason.startswith("the native core cannot be loaded: ")


# What is known of it where types are checked

STUB = Path(build.__file__).with_name("native.pyi")


def names_of(scope: ast.Module | ast.ClassDef) -> set[str]:
    """What a stub declares, without what it imports."""
    found: set[str] = set()
    for node in scope.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.startswith("_")}


@NATIVE_CORE
def test_the_stub_declares_what_the_core_has() -> None:
    stub = ast.parse(STUB.read_text(encoding="utf-8"))
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    both = {"Cursor", "Interceptor", "Node"}  # declared by the reference core
    assert CORE.module is not None
    core = {name for name in vars(CORE.module) if not name.startswith("_")}
    assert names_of(stub) | both == core
    for name, declared in classes.items():
        members = vars(getattr(CORE.module, name))
        there = {member for member in members if not member.startswith("_")}
        assert names_of(declared) == there, name


# Cores that were built with wrong headers


class Lie(NamedTuple):
    """A change of one of torch's headers, as another version might have made it."""

    header: str
    before: str
    after: str
    found: str


LIES = {
    "version": Lie(
        "torch/headeronly/version.h",
        '  "2.',
        '  "2.9',
        "was built for torch ",
    ),
    "record": Lie(
        "ATen/record_function.h",
        "int64_t sequence_nr_ = -1;",
        "int64_t more = 7;\n  int64_t sequence_nr_ = -1;",
        "what is reported of autograd nodes and operators",
    ),
    "pointer": Lie(
        "c10/core/Allocator.h",
        "  Device device_;",
        "  Device device_;\n  void* more = nullptr;",
        "the storage of a tensor",
    ),
    "storage": Lie(
        "c10/core/StorageImpl.h",
        "  DataPtr data_ptr_;",
        "  void* more = nullptr;\n  DataPtr data_ptr_;",
        "the storage of a tensor",
    ),
}
LOAD = """
import json, sys, torch
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from torchprof_hooks.kernel.native.build import NAME
from torchprof_hooks.kernel.native.verify import why_not
loader = ExtensionFileLoader(NAME, sys.argv[1])
module = module_from_spec(spec_from_file_location(NAME, sys.argv[1], loader=loader))
loader.exec_module(module)
print(json.dumps(why_not(module)))
"""


def headers_with(lie: Lie, folder: Path) -> Path:
    """A folder to be looked into before torch's own."""
    theirs = Path(torch.__file__).parent / "include" / lie.header
    if not theirs.exists():  # older torch
        pytest.skip(f"this torch has no {lie.header}")
    text = theirs.read_text()
    assert lie.before in text
    ours = folder / lie.header
    ours.parent.mkdir(parents=True)
    ours.write_text(text.replace(lie.before, lie.after, 1))
    return folder


@NATIVE_CORE
@pytest.mark.parametrize(
    ("name", "otherwise", "found"),
    [
        (
            "sequence_number",
            lambda node: sequence_number(node) + 1,
            "the counter of autograd nodes",
        ),
        (
            "storage_of",
            lambda tensor: storage_of(torch.zeros(3, 5)),
            "the storage of a tensor",
        ),
    ],
    ids=["node", "storage"],
)
def test_a_core_that_reads_something_else_than_torch_is_refused(
    name: str, otherwise: Any, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would with wrong headers (see below)."""
    assert CORE.module is not None
    assert not verify.why_not(CORE.module)
    monkeypatch.setattr(verify, name, otherwise)
    assert verify.why_not(CORE.module).endswith(f": {found}")


@NATIVE_CORE
@pytest.mark.thorough  # each is compiled
@pytest.mark.parametrize("name", LIES)
def test_a_core_with_wrong_headers_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie = LIES[name]
    changed = headers_with(lie, tmp_path / "include")
    try:
        path = built_with(changed, tmp_path / "core.so")
    except NotBuiltError as error:
        pytest.skip(str(error))
    done = python("-c", LOAD, str(path), fresh=True)
    assert done.returncode == 0, done.stderr
    assert lie.found in json.loads(done.stdout.splitlines()[-1])


def built_with(headers: Path, path: Path) -> Path:
    """The core, compiled with other headers. torch's own are found beside these."""
    package = Path(torch.__file__).parent
    includes = (
        str(headers),
        sysconfig.get_paths()["include"],
        str(package / "include"),
    )
    links = (f"-L{package / 'lib'}", "-lc10", "-ltorch_cpu")
    run_compiler(build.SOURCE, path, includes, links, "-O0")
    return path
