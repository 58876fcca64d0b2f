"""How the interpreter is started that runs the program."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import TRAIN, plain, profiled, python, reports_in, written
from torchprof_hooks import __version__
from torchprof_hooks.profiles.options import trouble_with_file
from torchprof_hooks.program.arguments import COMMANDS
from torchprof_hooks.program.cli import main
from torchprof_hooks.program.launch import interpreter_options

ROOT = str(Path(__file__).parents[2])
#: Prints what a program can see of how it was started, and what its children inherit.
FLAGS = """
import json, os, subprocess, sys
print(json.dumps([
    sys.flags[:], sys._xoptions, sys.warnoptions, sys.argv, sys.path, list(globals()),
    sys.stdout is None, sys.stderr is None,
]), file=sys.__stdout__ or open(os.environ["OUT"], "w"))
"""
INHERITED = """
import json, os, subprocess, sys
print(json.dumps(sorted(os.environ)), flush=True)
subprocess.run([sys.executable, "-c", "import os; print(sorted(os.environ))"])
"""


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("python -m torchprof_hooks -u x.py", ""),
        ("python -u -X dev -W error -m torchprof_hooks x.py", "-u -X dev -W error"),
        ("python -Xdev -Werror -m torchprof_hooks x.py", "-Xdev -Werror"),
        ("python -um torchprof_hooks x.py", "-u"),
        ("python -Bum torchprof_hooks x.py", "-Bu"),
        ("python -uXdev -mtorchprof_hooks x.py", "-uXdev"),
        ("python -uX dev -m torchprof_hooks", "-uX dev"),
        ("python -W m -m torchprof_hooks", "-W m"),
        ("python -O /bin/torchprof-hooks -u x.py", "-O"),
    ],
)
def test_options_of_the_interpreter_are_found(command: str, options: str) -> None:
    assert " ".join(interpreter_options(command.split())) == options


@pytest.mark.parametrize(
    "options",
    [
        ("-X", "dev", "-W", "ignore::DeprecationWarning"),
        ("-OO", "-B", "-Xutf8"),
        ("-b", "-s", "-P") if sys.version_info >= (3, 11) else ("-b", "-s"),
    ],
    ids=" ".join,
)
def test_options_of_the_interpreter_are_the_programs(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    path = written(tmp_path, FLAGS)
    alone = plain(*options, path)
    run = plain(*options, "-m", "torchprof_hooks", path)
    assert alone.code == 0
    assert (run.code, run.out, run.err) == (0, alone.out, alone.err)


@pytest.mark.parametrize("option", ["-E", "-I", "-S"])
def test_options_that_hide_us_are_named(option: str, tmp_path: Path) -> None:
    """Also for programs that never import torch: that is known too late."""
    ours = tmp_path / "torchprof-hooks"  # as the console command is installed
    ours.write_text(
        f"import sys; sys.path.insert(0, {ROOT!r})\n"
        "from torchprof_hooks.program.cli import main\nsys.exit(main())"
    )
    path = written(tmp_path, FLAGS + INHERITED)
    alone, run = plain(option, path), plain(option, str(ours), path)
    assert (run.code, run.out) == (0, alone.out)
    assert run.err.startswith(
        f"torchprof_hooks: the program is not measured: with Python's {option}, "
    )
    assert "torchprof_hooks.enable()" in run.err
    assert run.err.count("\n") == 1


def test_children_inherit_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHPROF_HOOKS_CORE", raising=False)  # theirs, if it is there
    path = written(tmp_path, INHERITED)
    alone, run = plain(path, fresh=True), profiled(path, fresh=True)
    assert run.out == alone.out
    assert "TORCHPROF" not in run.out


@pytest.mark.parametrize("closed", ["1", "2", "12"])
def test_closed_outputs(closed: str, tmp_path: Path) -> None:
    """As Python runs it: with None in the place of the streams."""
    out = tmp_path / "out"
    path = written(tmp_path, FLAGS + "exit(3)")
    redirect = " ".join(f"{stream}>&-" for stream in closed)
    environment = {**os.environ, "OUT": str(out)}

    def run(*command: str) -> tuple[int, str]:
        out.unlink(missing_ok=True)
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, *command],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=120,
        )
        printed = out.read_text() if out.exists() else done.stdout
        return done.returncode, printed

    alone = run(path)
    assert alone[0] == 3
    found = json.loads(alone[1])
    assert found[-2:] == ["1" in closed, "2" in closed]
    assert run("-m", "torchprof_hooks", path) == alone


def test_a_report_does_not_go_where_it_was_not_sent(tmp_path: Path) -> None:
    """Where standard error is closed, that is no reason to print it elsewhere."""
    path = written(tmp_path, TRAIN + "import sys; sys.stderr.close()")
    run = profiled(path)
    assert (run.code, run.out, run.err) == (0, "trained\n", "")
    path = written(tmp_path, "import torch, sys; sys.stderr = None")
    assert profiled(path).out == ""


def test_a_look_for_torch_is_not_its_import(tmp_path: Path) -> None:
    """As transformers looks, and then imports it, or does not."""
    look = "import importlib.util; assert importlib.util.find_spec('torch')\n"
    run = profiled(written(tmp_path, 2 * look + TRAIN))
    assert (run.code, run.out, run.reports) == (0, "trained\n", 1)


def test_a_first_import_of_torch_that_fails(tmp_path: Path) -> None:
    """It may work out the second time."""
    fake = tmp_path / "torch"
    fake.mkdir()
    (fake / "__init__.py").write_text("raise ImportError('not yet')")
    retry = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
try:
    import torch
except ImportError as error:
    assert str(error) == "not yet"
sys.path.pop(0)
"""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    program = retry + "import torch\ntorch.nn.ReLU()(torch.ones(1))\n"
    run = profiled(written(elsewhere, program), fresh=True)
    assert (run.code, run.out, run.reports) == (0, "", 1)


# Where files go


def cannot(folder: Path) -> list[tuple[Path, str]]:
    """Where no file can be written, and why not."""
    (folder / "file").touch()
    return [
        (folder / "no" / "x", f"the folder {folder / 'no'} does not exist: make it fi"),
        (folder, "that is a folder: name a file in it"),
        (folder / "file" / "x", f"the folder {folder / 'file'} is not a folder"),
    ]


@pytest.mark.parametrize("option", ["--save", "--destination", "--html"])
def test_a_file_that_cannot_be_written_is_told_of_before_the_program_runs(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for where, reason in cannot(tmp_path):
        assert main([f"{option}={where}", "-c", "print('ran')"]) == 2
        run = capsys.readouterr()
        assert run.out == ""
        assert run.err.startswith(f"torchprof_hooks: {option} {where}: {reason}")
        assert run.err.count("\n") == 1


def test_a_folder_in_which_nothing_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file there could be written to, but is replaced by a new one."""
    place = tmp_path / "folder"
    place.mkdir()
    file = place / "profile.json"
    file.touch()
    place.chmod(0o555)

    def may_write(path: Path, mode: int) -> bool:  # who is root may do everything
        return mode == os.W_OK and bool(path.stat().st_mode & stat.S_IWUSR)

    monkeypatch.setattr(os, "access", may_write)
    trouble = f"the folder {place} cannot be written to: name another file"
    assert trouble_with_file(file) == trouble
    assert trouble_with_file(place / "new.json") == trouble
    (tmp_path / "link.json").symlink_to(file)
    assert trouble_with_file(tmp_path / "link.json") == trouble
    place.chmod(0o755)
    assert not trouble_with_file(file)
    file.chmod(0o444)
    assert trouble_with_file(file).startswith("that file cannot be written to")


def test_the_same_for_the_other_ways_in(tmp_path: Path) -> None:
    where, reason = cannot(tmp_path)[0]
    path = written(tmp_path, "import torchprof_hooks\nprint('ran')")
    run = plain(path, flags=f"profile=True,save={where}")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith(f"TORCHPROF_HOOKS_FLAGS: save {where}: {reason}")
    call = f"import torchprof_hooks as t; t.enable(destination={str(where)!r})"
    run = plain(written(tmp_path, call))
    assert run.code == 1
    assert f"FlagError: profiling.destination {where}: {reason}" in run.err


def test_files_go_where_it_was_started(tmp_path: Path) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    away = f"import os; os.chdir({str(tmp_path / 'there')!r})\n"
    path = written(tmp_path, away + TRAIN)
    options = ("--save", "x.json", "--destination", "report.txt")
    environment = {**os.environ, "PYTHONPATH": ROOT}
    command = ("-m", "torchprof_hooks", *options, path)
    done = python(*command, environment=environment, folder=tmp_path / "here")
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "there").iterdir())
    assert reports_in((tmp_path / "here" / "report.txt").read_text()) == 1
    assert (tmp_path / "here" / "x.json").exists()


# Notations


def test_the_version() -> None:
    run = profiled("--version")
    assert (run.code, run.out, run.err) == (0, f"torchprof-hooks {__version__}\n", "")


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("bin/torchprof-hooks", "torchprof-hooks"),
        ("torchprof_hooks/__main__.py", "python -m torchprof_hooks"),
    ],
)
def test_the_help_has_all_commands_by_the_name_that_was_called(
    called: str,
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: {name} [options] (script.py | -m module | ")
    words = " ".join(text.split())
    for command, about in COMMANDS.items():
        assert f" {command} {about.does}" in words
    assert "--every N" in text
    assert "VALUE" not in text


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("x", 2)])
def test_arguments_of_build(
    argument: str,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["torchprof-hooks"])
    with pytest.raises(SystemExit) as exit_:
        main(["build", argument])
    assert exit_.value.code == code
    printed = capsys.readouterr()
    usage = "usage: torchprof-hooks build [-h] [--clear]\n"
    assert (printed.err if code else printed.out).startswith(usage)
