"""The commands for files as processes of their own: what only these can show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import FUNCTIONS, STEP, hand_built, timed
from tests.program.test_file_tools import FORMATS, slowed
from tests.thorough import in_turns
from torchprof_hooks import Profile


def saved(path: Path, profile: Profile) -> str:
    profile.save(path)
    return str(path)


def in_process(
    *argv: str, stdout: int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    code = "import sys; from torchprof_hooks.program.file_tools import main\n"
    code += "code = main(sys.argv[1:]); assert 'torch' not in sys.modules\n"
    code += "sys.exit(code)"
    return subprocess.run(
        [sys.executable, "-c", code, *argv],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        check=False,
    )


def test_files_are_shown_without_torch(tmp_path: Path) -> None:
    done = in_process(
        "show", saved(tmp_path / "profile.json", FUNCTIONS), COLUMNS="120"
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == FUNCTIONS.report() + "\n"


@pytest.mark.parametrize(
    ("kind", "encoding"),
    in_turns([(kind, name) for name in ("ascii", "utf-8") for kind in FORMATS], 0, 2),
)
def test_output_that_cannot_show_every_name(
    kind: str, encoding: str, tmp_path: Path
) -> None:
    odd = "Net.ä\ud800"
    path = saved(
        tmp_path / "profile.json",
        hand_built({(odd, "forward"): timed(1)}, {odd: "Net"}),
    )

    done = in_process("show", path, "--format", kind, PYTHONIOENCODING=encoding)

    assert (done.returncode, done.stderr) == (0, b"")


def test_nobody_reads_to_the_end(tmp_path: Path) -> None:
    old, new = (
        saved(tmp_path / "a.json", slowed()),
        saved(tmp_path / "b.json", slowed(1.5, seed=1)),
    )
    reader, writer = os.pipe()
    os.close(reader)
    try:
        shown = in_process("show", old, "--format", "json", stdout=writer)
        compared = in_process("compare", old, new, stdout=writer)
    finally:
        os.close(writer)

    assert (shown.returncode, shown.stderr) == (0, b"")
    assert (compared.returncode, compared.stderr) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_disk(tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = in_process("show", saved(tmp_path / "profile.json", STEP), stdout=full)
    finally:
        os.close(full)

    assert done.returncode == 2
    assert done.stderr == (
        b"torchprof_hooks: cannot write the output: No space left on device\n"
    )
