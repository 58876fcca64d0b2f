"""All that needs a CUDA device: the tests marked `gpu`, and the benchmarks there.

`make gpu-check` runs this. Without such a device it says so, and writes nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
TESTS = "tests"
SCRIPTS = ("bench_gpu", "bench_overhead", "bench_coverage")
OUTCOMES = ("passed", "failed", "skipped")


def installed_torch() -> str:
    """The version of a torch that sees a CUDA device.

    Raises:
        SystemExit: there is none, and why.
    """
    advice = "Nothing was run or written. On a machine with a GPU: PYTHON=..."
    try:
        import torch
    except ImportError:
        sys.exit(f"gpu-check: {sys.executable} has no torch. {advice}")
    if not torch.cuda.is_available():
        built = "none" if torch.version.cuda is None else torch.version.cuda
        sys.exit(
            f"gpu-check: there is no GPU. Torch {torch.__version__} of "
            f"{sys.executable}, built for CUDA {built}, sees no CUDA device. {advice}"
        )
    return str(torch.__version__)


def run_tests() -> bool:
    """Run the tests and save what came of them. Whether none failed."""
    import results
    from bench import result_name

    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        options = ["-m", "gpu", f"--junitxml={report}", *test_files(ROOT / "tests")]
        has_passed = runs("-m", "pytest", *options)
        if not report.exists():
            return False
        counts = outcomes(report.read_text())
    rows: list[list[results.Cell]] = [
        [name, *(count[o] for o in OUTCOMES)] for name, count in counts.items()
    ]
    table = results.Table("Tests that need a CUDA device", ["", *OUTCOMES], rows)
    results.save(result_name(TESTS), [table], counts)
    return has_passed


def test_files(directory: Path) -> list[str]:
    """Those with such tests: the others need not be importable there."""
    files = sorted(directory.rglob("test_*.py"))
    return [str(path) for path in files if "pytest.mark.gpu" in path.read_text()]


def outcomes(report: str) -> dict[str, Counter[str]]:
    """How many tests had which outcome, by module, of a report in JUnit's format."""
    counts: dict[str, Counter[str]] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        tags = {child.tag for child in case}
        failed = bool(tags & {"failure", "error"})
        outcome = "failed" if failed else "skipped" if "skipped" in tags else "passed"
        counts.setdefault(case.get("classname", ""), Counter())[outcome] += 1
    return counts


def runs(*arguments: str) -> bool:
    """Run Python in the root of the repository. Whether it ended well."""
    print(f"\n# {' '.join(arguments[:2])}", flush=True)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def run(part: str) -> bool:
    """Run the tests or a benchmark. Whether that ended well."""
    return run_tests() if part == TESTS else runs(f"benchmarks/{part}.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", help=f"of {', '.join([TESTS, *SCRIPTS])}; all by default"
    )
    parser.add_argument(
        "--constraint", action="store_true", help="only print which torch is there"
    )
    arguments = parser.parse_args()
    version = installed_torch()
    if arguments.constraint:
        print(f"torch=={version}")
        return
    parts = arguments.parts or [TESTS, *SCRIPTS]
    failed = [part for part in parts if not run(part)]
    if failed:
        sys.exit(f"gpu-check: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
