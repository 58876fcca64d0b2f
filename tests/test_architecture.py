"""The house keeps its shape: who may import whom, and how large things may get."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "torchprof_hooks"
FILES = sorted(PACKAGE.rglob("*.py"))

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

#: Layer -> layers of ours that it may import.
MAY_IMPORT = {
    "measure": set[str](),
    "profiles": {"profiles"},
    "reports": {"reports", "profiles"},
    "capture": {"capture", "measure", "profiles"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(path: Path, at_runtime: bool = False) -> Iterator[str]:
    """Modules that a file imports; at runtime: not those for type checkers alone."""
    tree = ast.parse(path.read_text())
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
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


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_layers(path: Path) -> None:
    here = layer(module_name(path))
    imported = set(imports(path))
    ours = {layer(name) for name in imported if name.startswith("torchprof_hooks.")}
    if here in MAY_IMPORT:
        assert ours <= MAY_IMPORT[here]
    if here in ("profiles", "reports"):
        assert not {name for name in imported if name.split(".")[0] == "torch"}
    if module_name(path) != "torchprof_hooks.reports":
        tabulating = {"tabulate"} & imported
        assert not tabulating or here == "reports"


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_hook_points_and_private_names_of_torch_stay_in_capture(path: Path) -> None:
    name = module_name(path)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            if layer(name) != "capture":
                assert node.attr not in HOOK_POINTS
            if not name.startswith("torchprof_hooks.capture.torch_names."):
                root = ast.unparse(node.value).split(".")[0]
                assert not (root == "torch" and node.attr.startswith("_"))


def test_no_import_cycles() -> None:
    edges = {
        module_name(path): {
            name for name in imports(path, at_runtime=True) if "torchprof_hooks" in name
        }
        for path in FILES
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


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_sizes(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            lines = (node.end_lineno or 0) - node.lineno
            docstring = ast.get_docstring(node) or ""
            assert lines - len(docstring.splitlines()) <= 40, node.name
