"""Breaks lines that book time, one after the other, and tells which of these mutants
the exact tests do not notice::

    python -m tests.mutate [--files core/native/log.h ...] [--sample 50] [--list]

Each mutant is run in a process of its own, forked from one that has imported torch, on
a copy of the tree: those of the native core with that, the others with the core in
Python. To be run by hand: it takes some seconds for each mutant, and the native core
has to be built for each of its own.
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

from tests.native_mutants import mutated_lines

#: See `torchprof_hooks.capture.core.choose`, which imports what mutants are.
VARIABLE: Final = "TORCHPROF_HOOKS_CORE"
ROOT: Final = Path(__file__).parents[1]
CAPTURE: Final = Path("torchprof_hooks/capture")

#: Files that book time, or say on whom.
NATIVE_FILES: Final = tuple(
    f"core/native/{name}.h"
    for name in (
        *("log", "reading", "calls/calls", "calls/modules"),
        *("backward/passes", "backward/nodes"),
        *(
            "backward/tape",
            "meters/memory_meter",
            "meters/device_meter",
            "meters/stamps",
        ),
        "meters/accounts",
    )
)
FILES: Final = (
    *(
        "core/reference.py",
        "core/reference_nodes.py",
        "core/span_log.py",
    ),
    "tracking/tracker.py",
    *("backward/node_hooks.py", "backward/graph.py"),
    *("snapshot.py", "own_sums.py", "overhead.py"),
    *NATIVE_FILES,
)
#: Tests that assert on a clock of their own; the quickest to notice come first.
TESTS: Final = (
    *(
        "tests/attribution/test_exact_booking.py",
        "tests/attribution/test_exact_calls.py",
    ),
    "tests/attribution/test_exact_interruptions.py",
    *(
        "tests/attribution/test_exact_threads.py",
        "tests/attribution/test_attribution.py",
    ),
    *(
        "tests/attribution/test_data_entry.py",
        "tests/attribution/test_optimizer_entry.py",
    ),
    *("tests/attribution/test_function_attribution.py", "tests/seeds/test_profiler.py"),
    *(
        "tests/attribution/test_autograd_variants.py",
        "tests/seeds/link_hooks/test_timers_and_memory.py",
        "tests/seeds/link_hooks/test_timer.py",
    ),
    "tests/attribution/test_exceptions.py",
    *("tests/seeds/function_hooks/test_timer.py", "tests/cost/test_overhead.py"),
    "tests/attribution/test_random_graphs.py",
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
    """text: of the whole file."""

    file: Path
    line: int
    what: str
    text: str

    @property
    def is_native(self) -> bool:
        return self.file.suffix != ".py"

    @property
    def place(self) -> str:
        return f"{self.file.name}:{self.line}"


def mutants(file: Path) -> Iterator[Mutant]:
    """All of a file, each with one thing changed."""
    text = (ROOT / file).read_text()
    if file.suffix == ".py":
        yield from _python_mutants(file, text)
        return
    for line, before, after in mutated_lines(text):
        lines = text.splitlines()
        lines[line - 1] = after
        what = f"{before.strip()}  ->  {after.strip()}"
        yield Mutant(file, line, what, "\n".join([*lines, ""]))


def _python_mutants(file: Path, text: str) -> Iterator[Mutant]:
    tree = ast.parse(text)
    for position, node in enumerate(ast.walk(tree)):
        if not isinstance(node, ast.expr | ast.stmt):
            continue
        for change in _CHANGES:
            changed = copy.deepcopy(node)
            if change(changed):
                mutated = copy.deepcopy(tree)
                change(list(ast.walk(mutated))[position])
                what = _what(node, changed)
                yield Mutant(file, node.lineno, what, ast.unparse(mutated))


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
    """Whether a test fails, or the compiler."""
    original = (tree / mutant.file).read_text()
    (tree / mutant.file).write_text(mutant.text)
    try:
        return _run_tests(tree, tests, mutant.is_native) != 0
    finally:
        (tree / mutant.file).write_text(original)


def _run_tests(
    tree: Path, tests: Sequence[str], is_native: bool, is_quiet: bool = True
) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            with tempfile.TemporaryDirectory() as cache:  # not the user's own
                os.environ["XDG_CACHE_HOME"] = cache
                os.environ[VARIABLE] = "native" if is_native else "python"
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
        contextlib.redirect_stderr(file),
    ):
        code = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests]))
    # Where it cannot be built, the other core runs instead. Only pytest may import it.
    core = sys.modules["torchprof_hooks.capture.core"].CORE
    return code or int(core.name != os.environ[VARIABLE])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", nargs="+", default=FILES, metavar="NAME")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH")
    parser.add_argument("--sample", type=int, help="so many of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="run none of them")
    options = parser.parse_args(arguments)
    found = [mutant for name in options.files for mutant in mutants(CAPTURE / name)]
    if options.sample is not None and options.sample < len(found):
        found = random.Random(options.seed).sample(found, options.sample)
    if options.list:
        for mutant in found:
            print(mutant.place, mutant.what, sep=": ")
        return 0
    for name in ("torch", "torch.utils.data", "numpy"):
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, tree, ignore=ignored)
        for is_native in {mutant.is_native for mutant in found}:
            if _run_tests(tree, options.tests, is_native, is_quiet=False):
                print("the tests fail as it is")
                return 2
        return _report(found, tree, options.tests)


def _report(found: list[Mutant], tree: Path, tests: Sequence[str]) -> int:
    survivors = 0
    for number, mutant in enumerate(found, start=1):
        noticed = is_noticed(mutant, tree, tests)
        survivors += not noticed
        sign = "noticed " if noticed else "SURVIVES"
        place = f"{number}/{len(found)} {sign} {mutant.place}"
        print(f"{place}: {mutant.what}", flush=True)
    print(f"{len(found) - survivors} of {len(found)} mutants were noticed")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
