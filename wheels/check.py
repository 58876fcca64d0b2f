"""Tries a wheel with one Python and one torch: installs both into an environment of
their own, looks which core is taken, and runs the tests that need the native one.

``python wheels/check.py dist/*.whl --python python3.11 --torch 2.13.0`` writes what
came out into ``docs/compatibility/``. What is tried has no compiler there, no home that
can be written to, and no network, if the system can take it away.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).parents[1]
RECORDS: Final = ROOT / "docs" / "compatibility"
NEEDED: Final = ("pytest>=8", "hypothesis>=6", "expecttest", "tqdm")
#: Tests of the native core, and of what only that can do. None compiles anything, but
#: those that are skipped without a compiler.
TESTS: Final = (
    "tests/attribution/test_exact_booking.py",
    "tests/attribution/test_exact_threads.py",
    "tests/attribution/test_memory_owners.py",
    "tests/attribution/test_tape.py",
    "tests/attribution/test_tensor_memory.py",
    "tests/invisibility/test_interceptor.py",
)
NOT_HERE: Final = "not thorough and not serial"
#: The most processor time until the first profile measures, once torch is imported: on
#: a quiet machine, it is about 30.
FIRST_MS: Final = 40.0


def environment(folder: Path) -> dict[str, str]:
    """Variables of an environment without a compiler, and with a home that is none."""
    left = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("sh", "env", "git", "sleep", "cat", "cp"):  # what tests run
        if (found := shutil.which(name)) and not (tools / name).exists():
            (tools / name).symlink_to(found)
    return {
        **left,
        "PATH": f"{folder / 'bin'}:{tools}",
        "HOME": "/proc/none",
        "OMP_NUM_THREADS": "1",
        # Where it is experimental, it has to be asked for.
        "TORCHPROF_HOOKS_CORE": "native" if sys.platform == "darwin" else "",
    }


def without_network() -> list[str]:
    """What a command begins with; [] where the system does not let us."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return []
    command = [unshare, "--net", "--map-root-user"]
    done = subprocess.run([*command, "true"], capture_output=True, check=False)
    return [] if done.returncode else command


def install(wheel: str, python: str, torch: str, folder: Path) -> None:
    """Make the environment, unless it is there, and put the wheel into it."""
    if not folder.exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, f"torch=={torch}", *NEEDED], check=True)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", wheel], check=True)
    subprocess.run([*pip, wheel], check=True)


def ask(folder: Path) -> dict[str, Any]:
    """What `tried.py` says."""
    script = Path(__file__).with_name("tried.py")
    done = subprocess.run(
        [*without_network(), folder / "bin" / "python", script],
        env=environment(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def faults(answers: Mapping[str, Any], suffix: str) -> list[str]:
    """What is not as it has to be."""
    found = []
    code, out, err = answers["first"]
    if code or err or out.partition(" ")[0] != "native" or suffix not in out:
        found.append(f"first profile: {code}, {out}, {err}")
    if answers.get("entered_ms", FIRST_MS) > FIRST_MS:
        found.append(f"the first profile begins after {answers['entered_ms']} ms")
    code, out, err = answers["newer"]
    if code or out != "python" or len(err.splitlines()) != 1:
        found.append(f"a newer torch: {code}, {out}, {err}")
    for name, (status, said, *_) in answers.get("others", {}).items():
        if status != "0" or said == "fits":
            found.append(f"{name}: {status}, {said}")
    return found


def run_tests(folder: Path) -> tuple[int, int, int]:
    """How many tests passed, failed and were skipped. They run in a copy that has not
    the package, so that what they import is the wheel."""
    with tempfile.TemporaryDirectory() as place:
        for name in ("tests", "examples", "benchmarks"):
            shutil.copytree(ROOT / name, Path(place, name))
        shutil.copy(ROOT / "pyproject.toml", place)
        results = Path(place, "results.xml")
        subprocess.run(
            [
                *(folder / "bin" / "python", "-m", "pytest", "-q", "-m", NOT_HERE),
                *("-p", "no:cacheprovider", f"--junitxml={results}", *TESTS),
            ],
            env={**environment(folder), "TORCHPROF_HOOKS_CORE": "native"},
            cwd=place,
            check=False,
        )
        suite = next(ElementTree.parse(results).getroot().iter("testsuite"))
    number = {name: int(suite.get(name, 0)) for name in _COUNTS}
    failed = number["failures"] + number["errors"]
    return number["tests"] - failed - number["skipped"], failed, number["skipped"]


_COUNTS: Final = {"tests", "failures", "errors", "skipped"}


def leftovers(folder: Path) -> list[str]:
    """What is left of the package when it is uninstalled."""
    pip = [str(folder / "bin" / "python"), "-m", "pip", "uninstall", "--quiet", "--yes"]
    subprocess.run([*pip, "torchprof-hooks"], check=True)
    return [str(path) for path in folder.rglob("*torchprof?hooks*")]


def main(arguments: Sequence[str]) -> int:
    """Try what the arguments say. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", required=True)
    parser.add_argument("--torch", required=True)
    parser.add_argument("--venv", type=Path, help="its environment")
    given = parser.parse_args(arguments)
    python = shutil.which(given.python)
    if python is None:
        parser.error(f"there is no {given.python}")
    version = subprocess.check_output(
        [python, "-c", "import platform; print(platform.python_version())"], text=True
    ).strip()
    minor = ".".join(version.split(".")[:2])
    folder = given.venv or ROOT / f".venv-torch-{given.torch}-wheel-py{minor}"
    install(str(given.wheel.resolve()), python, given.torch, folder.absolute())
    answers = ask(folder.absolute())
    of_torch, of_python = given.torch.rpartition(".")[0], minor.replace(".", "")
    suffix = f"torch-{of_torch}.cpython-{of_python}-"
    wrong = faults(answers, suffix)
    passed, failed, skipped = run_tests(folder.absolute())
    left = leftovers(folder.absolute())
    record = {
        "torch": given.torch,
        "python": version,
        "build": " ".join(answers["first"][1].split()[3:]),
        "binary": Path(answers["first"][1].split()[1]).name,
        "refused": len(answers.get("others", {})),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "passed": passed,
        "failed": failed,
        "skipped": skipped,
    }
    for name, answer in answers.get("others", {}).items():
        print(name, *answer, sep=": ")
    print("newer torch:", *answers["newer"])
    print("the first profile begins after", answers.get("entered_ms"), "ms")
    print(json.dumps(record, indent=1), *wrong, *left, sep="\n")
    RECORDS.mkdir(exist_ok=True)
    text = json.dumps(record, indent=1) + "\n"
    (RECORDS / f"wheel-torch-{given.torch}-python-{minor}.json").write_text(text)
    return 1 if wrong or left or failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
