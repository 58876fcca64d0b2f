"""Whatever a file has: it is refused in words, or every command can handle it.

``TORCHPROF_FUZZ=10000`` says how many mutants are tried, ``TORCHPROF_FUZZ_FROM=5000``
from which on: each has a number, and is the same every time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.profiles.mutants import NAMES, SAMPLES, mutant
from tests.thorough import IS_THOROUGH
from torchprof_hooks import Profile
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.program import file_tools

#: The usual ones take some seconds.
COUNT = int(os.environ.get("TORCHPROF_FUZZ", "200" if IS_THOROUGH else "50"))
FIRST = int(os.environ.get("TORCHPROF_FUZZ_FROM", "0"))
BATCH = 50

#: What `show` is asked for: two of these with each mutant.
SHOWN = (
    *(["--format", "text"], ["--format", "text", "--raw"]),
    *(["--by", by] for by in ("module", "class", "function", "call")),
    *(["--format", name] for name in ("json", "csv", "speedscope", "collapsed")),
)


def loads(path: Path) -> bool:
    """Whether it does; if not, the message says what is wrong, and where."""
    try:
        Profile.load(path)
    except ValueError as error:
        text = str(error)
        assert text.startswith(f"{path} "), text
        assert re.search("is damaged: |is not a|has version", text), text
        return False
    return True


def try_commands(
    path: Path,
    other: Path,
    capsys: pytest.CaptureFixture[str],
    shown: Sequence[Sequence[str]] = SHOWN,
) -> bool:
    """Whether the file was taken. Every command agrees on that."""
    taken = loads(path)
    good = {0} if taken else {2}
    out = str(path.with_name("merged.json"))
    for options in shown if taken else shown[:1]:
        assert file_tools.main(["show", str(path), *options]) in good
    for files in ([path, other], [other, path]):
        code = file_tools.main(["compare", *map(str, files)])
        assert code in ({0, 1} if taken else {2})
    code = file_tools.main(["merge", str(path), str(other), "-o", out])
    assert code in ({0, 2} if taken else {2})
    if code == 0:
        assert Profile.load(out).steps >= Profile.load(path).steps
    printed = capsys.readouterr().err
    if not taken:
        assert "torchprof_hooks: " in printed
    assert "Traceback" not in printed
    return taken


def try_report(path: Path) -> None:
    try:
        ProgramProfile.load(path)
        code = 0
    except ValueError:
        code = 2
    assert file_tools.main(["show", str(path), "--format", "report"]) == code


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, BATCH))
def test_mutants(
    first: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = 0
    for seed in range(first, min(first + BATCH, FIRST + COUNT)):
        name, content = mutant(seed)
        path = tmp_path / f"mutant-{seed}.json"
        path.write_bytes(content)
        shown = SHOWN[seed // len(NAMES) % 5 :: 5]
        taken += try_commands(path, SAMPLES / name, capsys, shown)
        if "program" in name:
            try_report(path)
        path.unlink()
    assert 0 < taken < BATCH  # both kinds were tried


@pytest.mark.parametrize("name", NAMES)
def test_what_they_were_made_of(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes((SAMPLES / name).read_bytes())
    assert try_commands(path, SAMPLES / name, capsys)
