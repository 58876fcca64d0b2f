"""Puts the native core into a wheel, if binaries were compiled for that (`make wheel`).
Else builds it for this user when the package is installed, if torch and a compiler are
there by then; if not, that is done when it is first used. All else is in
pyproject.toml."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

#: Where the source is published: "https://...". Links of the README lead there.
ADDRESS = ""
#: The folder of what wheels/binaries.py has compiled.
BINARIES = os.environ.get("TORCHPROF_HOOKS_BINARIES", "")
#: Seconds; it takes ten.
LONGEST = 180
BUILD = """
import sys
sys.path.insert(0, sys.argv[1])
from torchprof_hooks.kernel.native.build import native_module
native_module()
"""


class BuildWithCore(build_py):
    """What installs the package, which no native core keeps from being installed."""

    def run(self) -> None:
        super().run()
        if BINARIES:
            self.put_binaries()
            return
        # Isolated: pip builds where torch is not, but Python has its own packages.
        command = [sys.executable, "-I", "-c", BUILD, str(Path(__file__).parent)]
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, check=False, capture_output=True, timeout=LONGEST)

    def put_binaries(self) -> None:
        core = Path(self.build_lib, "torchprof_hooks", "kernel", "native")
        target = core / "binaries"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for path in Path(BINARIES).glob("*.so"):
            shutil.copy(path, target)


class WithBinaries(Distribution):
    """What is for one kind of machine."""

    def has_ext_modules(self) -> bool:
        return True


class WheelOfAMachine(bdist_wheel):
    """For any Python, of which it chooses its binary itself."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def description() -> str:
    """The README as a page of its own. Links to what lies beside it lead to where the
    source is, or become text, if that is not published; pictures are left out."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    text = re.sub(r"<!--.*?-->\n*", "", text, flags=re.DOTALL)
    text = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    there = rf"[\1]({ADDRESS}/blob/main/\2)" if ADDRESS else r"\1"
    return re.sub(r"\[([^]]*)\]\((?!https?:|#)([^)]*)\)", there, text)


setup(
    cmdclass={"build_py": BuildWithCore}
    | ({"bdist_wheel": WheelOfAMachine} if BINARIES else {}),
    distclass=WithBinaries if BINARIES else Distribution,
    long_description=description(),
    long_description_content_type="text/markdown",
    project_urls={"Source": ADDRESS} if ADDRESS else {},
)
