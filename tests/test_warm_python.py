"""A fork of an interpreter that has torch is to programs what a new interpreter is."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import python

LOOK_AROUND = """
import json, os, sys, warnings
def name(part):
    return sys.modules["__main__"].__dict__.get(part, "missing")
print(json.dumps([
    sys.argv, sys.orig_argv, sys.path, __name__, str(name("__file__")), os.getcwd(),
    __spec__ is None or __spec__.name, sorted(os.environ.items()), sys.warnoptions,
    warnings.filters[0][0] if sys.warnoptions else "", sys.stdin.read(),
    sys.stdout.encoding, sys.stdout.line_buffering, sys.stderr.encoding,
    [name(part) is None for part in ("__loader__", "__cached__", "__doc__")],
]))
"""


def both(tmp_path: Path, *arguments: str, typed: str = "typed") -> None:
    """Both say the same, and end well."""
    new, fork = new_and_fork(tmp_path, *arguments, typed=typed)
    assert new.returncode == 0, new.stderr
    assert (fork.returncode, fork.stdout) == (0, new.stdout)
    assert fork.stderr == new.stderr


def new_and_fork(
    tmp_path: Path, *arguments: str, typed: str = ""
) -> Iterator[subprocess.CompletedProcess[str]]:
    """What comes of a new interpreter, and of a fork."""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "ANOTHER": "ä"}
    for fresh in (True, False):
        yield python(
            *arguments,
            environment=environment,
            typed=typed,
            folder=tmp_path,
            fresh=fresh,
        )


@pytest.mark.parametrize("option", [(), ("-W", "ignore")], ids=" ".join)
def test_what_it_sees(option: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    script = tmp_path / "folder" / "program.py"
    for place in (script, tmp_path / "module.py"):
        place.write_text(LOOK_AROUND)
    both(tmp_path, *option, str(script), "-a", "b c")
    both(tmp_path, *option, "folder/program.py")
    both(tmp_path, *option, "-m", "module", "x")
    both(tmp_path, *option, "-c", LOOK_AROUND, "x")
    both(tmp_path, *option, "-", "x", typed=LOOK_AROUND)


def test_a_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; print(sys.path)")
    both(tmp_path, "-c", "import sitecustomize; print(sitecustomize.__file__)")


@pytest.mark.parametrize(
    ("program", "code", "last"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('message')", 1, "message"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("import os, signal; os.kill(os.getpid(), 15)", -signal.SIGTERM, ""),
        ("import os; os._exit(5)", 5, ""),
        ("import atexit, sys; atexit.register(sys.stderr.write, 'bye')", 0, "bye"),
    ],
)
def test_how_it_ends(program: str, code: int, last: str) -> None:
    done = python("-c", program)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1:] == [last] * bool(last)


def test_it_tells_of_exceptions_as_a_new_interpreter_does(tmp_path: Path) -> None:
    program = "def fail(n):\n    return 1 / n\nfail(0)"
    (tmp_path / "program.py").write_text(program)
    for arguments in (("program.py",), ("-m", "program"), ("-c", program)):
        new, fork = new_and_fork(tmp_path, *arguments)
        assert "ZeroDivisionError" in new.stderr
        assert (fork.returncode, places(fork)) == (new.returncode, places(new))


def places(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a traceback tells, but for lines of source, which Python has of programs in
    arguments since 3.13."""
    return [line for line in done.stderr.splitlines() if line[:4].strip()]


def test_programs_leave_nothing_to_those_after_them() -> None:
    look = "import os, sys, torch; print(hasattr(torch, 'mine'), 'MINE' in os.environ"
    look += ", 'torchprof_hooks' in sys.modules)\n"
    python("-c", look + "import torchprof_hooks; torch.mine = os.environ['MINE'] = '1'")
    assert python("-c", look).stdout == "False False False\n"
