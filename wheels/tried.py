"""Tries an installed wheel, without a compiler: ``python tried.py``, in an environment
that has it. Prints what came out, as JSON; `check.py` judges it.

Each question is asked in a process of its own, as a core that does not fit could crash.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

FIRST = """
import sys, time, torch
began = time.process_time()  # others use the machine, too
import torchprof_hooks
with torchprof_hooks.profile() as prof:
    entered_ms = 1000 * (time.process_time() - began)
    torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
from torchprof_hooks.kernel.core import CORE
file = CORE.module.__file__ if CORE.module else ""
build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
print(prof.profile.core, file, entered_ms, build)
"""
NEWER = """
import torch
torch.__version__ = torch.version.__version__ = "2.999.0"
import torchprof_hooks
with torchprof_hooks.profile() as prof:
    torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
print(prof.profile.core)
"""
#: Tries a core for another torch, with what its version says and without.
OTHER = """
import os, sys, torch
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
os.environ["TORCHPROF_HOOKS_CORE"] = "python"
from torchprof_hooks.kernel.native.build import NAME
from torchprof_hooks.kernel.native import verify
try:
    loader = ExtensionFileLoader(NAME, sys.argv[1])
    module = module_from_spec(spec_from_file_location(NAME, sys.argv[1], loader=loader))
    loader.exec_module(module)
except ImportError as error:
    print("cannot be loaded", error, sep="|")
else:
    found = verify._differs(module)
    print(verify.why_not(module) or "fits", found or "nothing", sep="|")
"""


def run(code: str, *arguments: str) -> tuple[int, str, str]:
    """The exit code, and what is said on standard output and error."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def others(binary: Path) -> dict[str, list[str]]:
    """What is said of each binary of the wheel that is for another torch, or for this
    torch and another Python."""
    found = {}
    torch, python = binary.name.split(".cpython")
    for path in sorted(binary.parent.glob("*.so")):
        is_for = path.name.split(".cpython")
        if (is_for[0] == torch) != (is_for[1] == python):
            code, out, err = run(OTHER, str(path))
            found[path.name] = [str(code), *out.split("|"), err[-200:]]
    return found


def main() -> None:
    """Print all answers."""
    code, out, err = run(FIRST)
    answers: dict[str, object] = {"first": [code, out, err]}
    fields = out.split()
    if code == 0 and fields[0] == "native":
        times = [float(run(FIRST)[1].split()[2]) for _ in range(9)]
        answers["entered_ms"] = round(min(times), 1)
        answers["others"] = others(Path(fields[1]))
    answers["newer"] = run(NEWER)
    answers["home"] = os.environ.get("HOME", "")
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
