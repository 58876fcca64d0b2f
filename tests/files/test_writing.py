"""What saving does to what is there already."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest

from tests.build import profile_of
from tests.running import TORCH, python
from torchprof_hooks import Profile
from torchprof_hooks.files.writing import replaced_file, write_text

PROFILE = profile_of(steps=3)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("bits", [0o600, 0o640, 0o644, 0o664, 0o755])
def test_the_mode_of_a_file_is_kept(bits: int, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("before")
    path.chmod(bits)
    PROFILE.save(path)
    assert mode(path) == bits
    assert Profile.load(path) == PROFILE


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_new_file_has_what_the_umask_leaves(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        PROFILE.save(tmp_path / "profile.json")
        (tmp_path / "plain").touch()
    finally:
        os.umask(before)
    assert mode(tmp_path / "profile.json") == mode(tmp_path / "plain") == 0o666 & ~mask


def test_links_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    target, link = folder / "target.json", tmp_path / "link.json"
    (tmp_path / "second.json").symlink_to(target)
    link.symlink_to("second.json")
    PROFILE.save(link)  # to nothing yet
    target.chmod(0o600)
    PROFILE.save(link)

    assert link.is_symlink()
    assert not target.is_symlink()
    assert Profile.load(target) == PROFILE
    assert mode(target) == 0o600
    assert [each.name for each in folder.iterdir()] == ["target.json"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path, read = tmp_path / "pipe", list[str]()
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    PROFILE.save(path)
    reader.join()
    assert stat.S_ISFIFO(path.stat().st_mode)
    PROFILE.save(tmp_path / "file")
    assert read == [(tmp_path / "file").read_text()]


def test_standard_output_keeps_what_is_in_it(tmp_path: Path) -> None:
    code = (
        "import sys; from torchprof_hooks import Profile; print('before', flush=True); "
        "Profile().save('/dev/stdout'); print('after')"
    )
    file = tmp_path / "out"
    with file.open("a") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    piped = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert piped == file.read_text()
    assert piped.startswith('before\n{"')
    assert piped.endswith("}after\n")


def saves_twice(folder: Path, name: str) -> None:
    path = folder / name
    PROFILE.save(path)
    PROFILE.save(path)
    assert Profile.load(path) == PROFILE
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize("length", [240, 253, 255])
def test_a_long_name(length: int, tmp_path: Path) -> None:
    saves_twice(tmp_path, "n" * (length - 5) + ".json")


def test_a_text_is_written_the_same_way(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    path.write_text("before")
    path.chmod(0o600)
    write_text("a class: \udcff", path)  # a name with a stray character
    assert path.read_text() == "a class: \\udcff"
    assert mode(path) == 0o600


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "no"
    with pytest.raises(FileNotFoundError) as raised:
        profile_of().to_html(folder / "x.html")
    assert raised.value.filename == str(folder)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as raised:
        PROFILE.save(tmp_path)
    assert str(raised.value) == f"[Errno 21] Is a directory: '{tmp_path}'"


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def write_half() -> None:
        with replaced_file(path) as file:
            file.write("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


#: Names that Windows has not, or not in all versions of Python.
_ABSENT: Final = """
import os, sys, torch
sys.modules["fcntl"] = None
for name in ("O_CLOEXEC", "fchmod", "fchown", "getuid", "killpg", "register_at_fork"):
    delattr(os, name)
"""
_SAVING: Final = """
import torchprof_hooks
with torchprof_hooks.profile(save=sys.argv[1]) as profiler:
    torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
with profiler:
    torch.nn.Linear(2, 2)(torch.ones(1, 2))
profiler.profile.save(sys.argv[1])
"""


@pytest.mark.slow
def test_where_there_are_no_locks_modes_and_owners(tmp_path: Path) -> None:
    """As on Windows, which is not tested itself."""
    path = tmp_path / "profile.json"
    environment = {**os.environ, "TORCHPROF_HOOKS_CORE": "python"}
    code = _ABSENT + _SAVING
    done = python("-c", code, str(path), environment=environment, loaded=TORCH)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Linear" in [row.name for row in Profile.load(path).rows()]
    assert [found.name for found in tmp_path.iterdir()] == ["profile.json"]
