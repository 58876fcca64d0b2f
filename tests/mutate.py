"""Breaks lines that book time, one after the other, and tells which of these mutants
the exact tests do not notice::

    python -m tests.mutate [--files thread_calls.py ...] [--sample 50]

Each mutant is run in a process of its own, forked from one that has imported torch, on
a copy of the tree. To be run by hand: it takes some seconds for each mutant.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[1]
CAPTURE: Final = Path("torchprof_hooks/capture")

#: Files that book time, or say on whom.
FILES: Final = (
    *("core/python.py", "core/python_calls.py", "core/span_log.py"),
    *("tracking/thread_calls.py", "tracking/tracker.py", "tracking/pass_lifetime.py"),
    *("tracking/meters/meters.py", "tracking/meters/memory.py"),
    *("backward/planned.py", "backward/plan.py", "backward/ownership.py"),
    *("snapshot.py", "own_sums.py"),
)
#: Tests that assert on a clock of their own; the quickest to notice come first.
TESTS: Final = (
    *("tests/capture/test_exact_booking.py", "tests/capture/test_exact_calls.py"),
    "tests/capture/test_exact_interruptions.py",
    *("tests/capture/test_exact_threads.py", "tests/capture/test_attribution.py"),
    *("tests/capture/test_data_entry.py", "tests/capture/test_optimizer_entry.py"),
    *("tests/capture/test_function_attribution.py", "tests/test_profiler.py"),
    *("tests/capture/test_autograd_variants.py", "tests/link_hooks/test_timer.py"),
    *("tests/capture/test_device_meter.py", "tests/capture/test_exceptions.py"),
    *("tests/function_hooks/test_timer.py", "tests/capture/test_own_cost.py"),
    "tests/capture/test_random_graphs.py",
)
#: After so long a mutant counts as noticed: it hangs.
TIMEOUT_SECS: Final = 240

_SWAPPED: Final[dict[type[Any], type[Any]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


class Mutant(NamedTuple):
    file: Path
    line: int
    what: str
    tree: ast.Module


def mutants(file: Path) -> Iterator[Mutant]:
    """All of a file, each with one thing changed."""
    tree = ast.parse((ROOT / file).read_text())
    for position, node in enumerate(ast.walk(tree)):
        if not isinstance(node, ast.expr | ast.stmt):
            continue
        for change in _CHANGES:
            changed = copy.deepcopy(node)
            if change(changed):
                mutated = copy.deepcopy(tree)
                change(list(ast.walk(mutated))[position])
                yield Mutant(file, node.lineno, _what(node, changed), mutated)


def _what(before: ast.AST, after: ast.AST) -> str:
    return "  ->  ".join(ast.unparse(node).splitlines()[0] for node in (before, after))


def _swap_operator(node: Any) -> bool:
    """``+`` and ``-``, ``<`` and ``<=``, ``and`` and ``or``, and so on."""
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        other = _SWAPPED.get(type(node.op))
        if other is not None:
            node.op = other()
        return other is not None
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPPED:
        node.ops = [_SWAPPED[type(node.ops[0])](), *node.ops[1:]]
        return True
    return False


def _negate(node: Any) -> bool:
    """The condition of an ``if`` or ``while`` that is a name or an attribute."""
    if not isinstance(node, ast.If | ast.While):
        return False
    if isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not):
        node.test = node.test.operand
        return True
    if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return True
    return False


def _drop(node: Any) -> bool:
    """A call whose result nobody looks at, and what is added to something."""
    if not isinstance(node, ast.stmt) or not _is_droppable(node):
        return False
    if isinstance(node, ast.Expr):
        node.value = ast.Constant(None)
        return True
    if isinstance(node, ast.AugAssign):
        node.value = ast.Constant(0)
        return isinstance(node.op, ast.Add | ast.Sub)
    return False


def _is_droppable(node: Any) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.AugAssign)


def _swap_arguments(node: Any) -> bool:
    if not isinstance(node, ast.Call | ast.Tuple):
        return False
    if isinstance(node, ast.Tuple) and not isinstance(node.ctx, ast.Load):
        return False
    values = node.args if isinstance(node, ast.Call) else node.elts
    if len(values) < 2 or ast.dump(values[-2]) == ast.dump(values[-1]):
        return False
    if any(isinstance(value, ast.Starred) for value in values):
        return False
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    if called in ("isinstance", "max", "min", "map", "cast", "zip"):
        return False
    values[-2:] = values[:-3:-1]
    return True


_CHANGES: Final[tuple[Callable[[Any], bool], ...]] = (
    *(_swap_operator, _negate, _drop, _swap_arguments),
)


def is_noticed(mutant: Mutant, tree: Path, tests: Sequence[str]) -> bool:
    """Whether a test fails."""
    original = (tree / mutant.file).read_text()
    (tree / mutant.file).write_text(ast.unparse(mutant.tree))
    try:
        return _run_tests(tree, tests) != 0
    finally:
        (tree / mutant.file).write_text(original)


def _run_tests(tree: Path, tests: Sequence[str], is_quiet: bool = True) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            code = _tests_in_this_process(tree, tests, is_quiet)
        finally:
            os._exit(code)
    deadline = time.monotonic() + TIMEOUT_SECS
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return 1


def _tests_in_this_process(tree: Path, tests: Sequence[str], is_quiet: bool) -> int:
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    sys.dont_write_bytecode = True
    for name in [n for n in sys.modules if n.split(".")[0] == "tests"]:
        del sys.modules[name]
    assert "torchprof_hooks" not in sys.modules
    with (
        open(os.devnull if is_quiet else "/dev/stderr", "w") as file,
        contextlib.redirect_stdout(file),
    ):
        return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests]))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", nargs="+", default=FILES, metavar="NAME")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH")
    parser.add_argument("--sample", type=int, help="so many of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    found = [mutant for name in options.files for mutant in mutants(CAPTURE / name)]
    if options.sample is not None and options.sample < len(found):
        found = random.Random(options.seed).sample(found, options.sample)
    for name in ("torch", "torch.utils.data", "numpy"):
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, tree, ignore=ignored)
        if _run_tests(tree, options.tests, is_quiet=False):
            print("the tests fail as it is")
            return 2
        return _report(found, tree, options.tests)


def _report(found: list[Mutant], tree: Path, tests: Sequence[str]) -> int:
    survivors = 0
    for number, mutant in enumerate(found, start=1):
        noticed = is_noticed(mutant, tree, tests)
        survivors += not noticed
        sign = "noticed " if noticed else "SURVIVES"
        place = f"{mutant.file.name}:{mutant.line}"
        print(f"{number}/{len(found)} {sign} {place}: {mutant.what}", flush=True)
    print(f"{len(found) - survivors} of {len(found)} mutants were noticed")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
