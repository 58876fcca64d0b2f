"""The house keeps its shape: who may import whom, and how large things may get.

What breaks a rule still is listed by name beside the rule. Whatever is mended is taken
off its list; nothing is added.
"""

from __future__ import annotations

import ast
import enum
import importlib
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.fake_clock import OF_TRAINERS

PACKAGE = Path(__file__).parent.parent / "torchprof_hooks"
FILES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({path.parent for path in FILES})
#: With those of C++.
SOURCES = [p for p in PACKAGE.rglob("*") if p.suffix in {".py", ".cpp", ".h"}]

#: Names in torch that only capture/ may use.
HOOK_POINTS = {
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook",
    "register_prehook",
}

#: Folders in the order of who may import whom: each itself, and those before it. ""
#: stands for the modules in no folder.
ORDER = (
    "profiles",
    "measure",
    "capture",
    "documents",
    "reports",
    "hooks",
    "",
    "link_hooks",
    "function_hooks",
    "session",
    "distributed",
    "integrations",
    "program",
)
#: Reports know profiles, and nothing of how they are measured.
NOT_FOR_REPORTS = {"measure", "capture"}
#: The public names come from everywhere, and the command is the program's.
FRONT_DOORS = {"torchprof_hooks", "torchprof_hooks.__main__"}
#: A profile shows itself: its methods import reports when they are called.
SHOWS_ITSELF = "torchprof_hooks.profiles.reportable"

#: The same inside of capture/, files and folders, for what is imported as a file runs.
CAPTURE_ORDER = (
    "torch_names",
    "core",
    "record",
    "backward",
    "attach",
    "communication",
    "functions",
    "tracking",
    "overhead",
    "compilation",
    "program_facts",
    "own_sums",
    "snapshot",
    "sampling",
    "tracing",
)
IN_CAPTURE = "torchprof_hooks.capture."

MOST_FILES = 15
LONGEST_FILE = 250
LONGEST_CLASS = 150
LONGEST_FUNCTION = 40
DEEPEST_CLASS = 2

#: capture/ is being rebuilt: until then, this is its limit.
LONGEST_FILE_IN_CAPTURE = 370
LONG_FILES: set[str] = set()
LONGEST_CLASS_IN_CAPTURE = 330
LONG_CLASSES: set[str] = set()
DEEP_CLASSES: set[str] = set()
#: State that modules hold: the one program that is measured, and how it ends, hooks
#: that are in use, and codecs that were made once.
SINGLETONS = {
    "hooks/hook.py:on_functions",
    "hooks/hook.py:on_modules",
    "measure/interrupted_exit.py:interrupted_exit",
    "profiles/files/profile_file.py:SCHEMA",
    "program/startup.py:_running",
    "session/training_session.py:_users",
}
#: Private names of Python's own libraries that are used outside of torch_names/.
FOREIGN_NAMES = {
    "argparse._SubParsersAction",
    "current_autograd_node()._sequence_nr",  # inlined: at each boundary of a pass
    "node._sequence_nr",  # inlined: the hot loop of a pass
    "self._lock._is_owned",
    "sys._current_frames",
    "sys._getframe",
}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def short(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> Sequence[ast.AST]:
    return tuple(ast.walk(parsed(path)))


def layer(module: str) -> str:
    """The folder that a module is in, "" for none."""
    _, _, inside = module.partition(".")
    folder = inside.partition(".")[0]
    return folder if (PACKAGE / folder).is_dir() else ""


@cache
def imports(path: Path, at_runtime: bool = False) -> frozenset[str]:
    """Modules that a file imports; at runtime: not those for type checkers alone."""
    return frozenset(_imports(path, at_runtime))


def _imports(path: Path, at_runtime: bool) -> Iterator[str]:
    hidden = {
        id(inner)
        for node in nodes(path)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in nodes(path):
        if at_runtime and id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in {path}"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in MODULES else node.module or ""


MODULES = {module_name(path) for path in FILES}


def is_ours(name: str) -> bool:
    return name.partition(".")[0] == "torchprof_hooks"


def check_layer(path: Path) -> None:
    name = module_name(path)
    here = layer(name)
    imported = imports(path)
    if name not in FRONT_DOORS:
        allowed = {*ORDER[: ORDER.index(here) + 1]}
        if here == "reports":
            allowed -= NOT_FOR_REPORTS
        if name == SHOWS_ITSELF:
            allowed.add("reports")
        ours = {each for each in imported if is_ours(each)}
        ours.discard("torchprof_hooks.version")
        assert {layer(each) for each in ours} <= allowed, name
    if here in ("profiles", "reports"):
        assert not {each for each in imported if each.split(".")[0] == "torch"}, name
    assert "tabulate" not in imported or here == "reports", name


def test_layers() -> None:
    for path in FILES:
        check_layer(path)


def test_layers_of_capture() -> None:
    def place(name: str) -> int:
        return CAPTURE_ORDER.index(name.removeprefix(IN_CAPTURE).partition(".")[0])

    for path in FILES:
        name = module_name(path)
        if name.startswith(IN_CAPTURE):
            inside = {n for n in imports(path, True) if n.startswith(IN_CAPTURE)}
            assert not {n for n in inside if place(n) > place(name)}, name


def check_names(path: Path) -> None:
    name = module_name(path)
    for node in nodes(path):
        if isinstance(node, ast.Attribute):
            if layer(name) != "capture":
                assert node.attr not in HOOK_POINTS, name
            if not f"{name}.".startswith("torchprof_hooks.capture.torch_names."):
                is_private = node.attr.startswith("_") and node_root(node) == "torch"
                assert not is_private, f"{name}: {node.attr}"


def node_root(node: ast.Attribute) -> str:
    """``a`` of ``a.b.c``."""
    return ast.unparse(node.value).split(".")[0]


def test_hook_points_and_private_names_of_torch_stay_in_capture() -> None:
    for path in FILES:
        check_names(path)


def private_names() -> set[str]:
    """Names with an underscore that this package gives to something of its own."""
    found = {"_fields", "_replace", "_asdict", "_field_defaults", "_make"}  # NamedTuple
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return found


def test_private_names_of_others_stay_in_torch_names() -> None:
    """A private name that nothing of ours has is somebody else's."""
    ours = private_names()
    found = {
        ast.unparse(node)
        for path in FILES
        if not short(path).startswith("capture/torch_names/")
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and node.attr not in ours
    }
    assert found <= FOREIGN_NAMES


def test_no_import_cycles() -> None:
    edges = {
        module_name(path): {name for name in imports(path, True) if is_ours(name)}
        for path in FILES
        if module_name(path) != SHOWS_ITSELF
    }
    done: set[str] = set()

    def visit(name: str, chain: tuple[str, ...]) -> None:
        assert name not in chain, " -> ".join((*chain, name))
        if name not in done:
            for imported in edges.get(name, ()):
                visit(imported, (*chain, name))
            done.add(name)

    for name in edges:
        visit(name, ())


def lines_of(node: ast.FunctionDef | ast.ClassDef) -> int:
    """Without the docstring."""
    docstring = ast.get_docstring(node) or ""
    return (node.end_lineno or 0) - node.lineno - len(docstring.splitlines())


def test_files_are_short() -> None:
    lengths = {short(path): len(path.read_text().splitlines()) for path in FILES}
    for name, length in lengths.items():
        if name.startswith("capture/"):
            assert length <= LONGEST_FILE_IN_CAPTURE, name
    outside = {n: k for n, k in lengths.items() if not n.startswith("capture/")}
    assert_listed((n for n, k in outside.items() if k > LONGEST_FILE), LONG_FILES)


def test_classes_are_short() -> None:
    lengths = {
        f"{short(path)}:{node.name}": lines_of(node)
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
    }
    for name, length in lengths.items():
        if name.startswith("capture/"):
            assert length <= LONGEST_CLASS_IN_CAPTURE, name
    outside = {n: k for n, k in lengths.items() if not n.startswith("capture/")}
    assert_listed((n for n, k in outside.items() if k > LONGEST_CLASS), LONG_CLASSES)


def test_functions_are_short() -> None:
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef):
                assert lines_of(node) <= LONGEST_FUNCTION, f"{short(path)}:{node.name}"


def test_folders_are_not_crowded() -> None:
    counts = Counter(short(path.parent) for path in SOURCES)
    assert not {name for name, count in counts.items() if count > MOST_FILES}


def test_the_architecture_tells_how_many_lines_there_are() -> None:
    """About: the numbers there need not follow each change."""
    text = (PACKAGE.parent / "ARCHITECTURE.md").read_text()
    whole, _, of_capture = text.partition("Inside `capture/`")
    found = {}
    for folder, part in ((PACKAGE, whole), (PACKAGE / "capture", of_capture)):
        for names, told in re.findall(
            r"^\| (`[^|]*/`) \| (\d+) \|", part, re.MULTILINE
        ):
            folders = [folder / name for name in re.findall(r"`(\w+)/`", names)]
            found[names, told] = sum(map(lines_in, folders))
    assert len(found) == 21
    for (names, told), lines in found.items():
        assert abs(int(told) - lines) <= 0.25 * lines + 200, (names, lines)


def lines_in(folder: Path) -> int:
    """Of Python and C++."""
    code = (path for path in SOURCES if folder in path.parents)
    return sum(len(path.read_text().splitlines()) for path in code)


def assert_listed(found: Iterable[str], listed: set[str]) -> None:
    """Only what is listed may break the rule. Outside of capture/, which is being
    rebuilt, what does not break it any more has to go from the list."""
    breaking = set(found)
    assert breaking <= listed
    kept = {name for name in listed - breaking if not name.startswith("capture")}
    assert not kept, f"take off the list: {kept}"


def modules_outside_capture() -> Iterator[tuple[Path, ModuleType]]:
    for path in FILES:
        name = module_name(path)
        is_left_out = path.stem in ("__main__", "sitecustomize") or name in OF_TRAINERS
        if layer(name) != "capture" and not is_left_out:
            yield path, importlib.import_module(name)


def test_classes_are_not_deep() -> None:
    """Classes of this package above one of its classes."""

    def depth(kind: type) -> int:
        bases = [base for base in kind.__bases__ if is_ours(base.__module__)]
        return 1 + max(map(depth, bases)) if bases else 0

    deep = (
        f"{short(path)}:{name}"
        for path, module in modules_outside_capture()
        for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__ == module.__name__
        if depth(kind) > DEEPEST_CLASS
    )
    assert_listed(deep, DEEP_CLASSES)


def is_mutable(value: Any, is_empty_display: bool) -> bool:
    """Whether a value at the level of a module is state: an empty container, something
    for threads, or an object of a class of ours that is no constant."""
    kind = type(value)
    if isinstance(value, (threading.local, type(threading.Lock()))):
        return True
    if not is_ours(kind.__module__):
        return is_empty_display and isinstance(value, Collection)
    params = getattr(kind, "__dataclass_params__", None)
    is_constant = isinstance(value, (tuple, enum.Enum)) or (params and params.frozen)
    return not is_constant and not isinstance(value, type)


def assigned(path: Path) -> Iterator[tuple[str, bool]]:
    """Names that a module assigns, and whether each is an empty container."""
    for node in parsed(path).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            text = ast.unparse(node.value)
            is_empty = text in ("[]", "{}") or text.endswith("()")
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, is_empty


def test_modules_hold_no_state() -> None:
    found = {
        f"{short(path)}:{name}"
        for path, module in modules_outside_capture()
        for name, is_empty in assigned(path)
        if is_mutable(getattr(module, name, None), is_empty)
    }
    assert_listed(found, SINGLETONS)
