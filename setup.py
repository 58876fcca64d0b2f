"""Builds the native core when the package is installed, if torch and a compiler are
there by then; if not, that is done when it is first used. All else is in
pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

#: Seconds; it takes ten.
LONGEST = 180
BUILD = """
import sys
sys.path.insert(0, sys.argv[1])
from torchprof_hooks.capture.core.build import native_module
native_module()
"""


class BuildWithCore(build_py):
    """What installs the package, which no native core keeps from being installed."""

    def run(self) -> None:
        super().run()
        # Isolated: pip builds where torch is not, but Python has its own packages.
        command = [sys.executable, "-I", "-c", BUILD, str(Path(__file__).parent)]
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, check=False, capture_output=True, timeout=LONGEST)


setup(cmdclass={"build_py": BuildWithCore})
