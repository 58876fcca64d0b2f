"""All that only a CUDA device can tell, in under eight minutes: what profiling costs
there, how far its times are from those of real kernels, and the tests marked `values`;
with a verdict at the end. What is counted, or exact, `make test-cuda` asks.

`make gpu-check` runs this. Without such a device it says so, and writes nothing. With
--quick, it tries itself with few rounds, also on the runtime that tests plant, and what
it writes is thrown away.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from gpu_parts import ROOT, Budget, Outcome, Part

#: Seconds in all, with which eight minutes are kept.
BUDGET_S: Final = 460.0
#: The status of `--ready` if packages are missing.
INCOMPLETE: Final = 3
NEEDED: Final = ("tabulate", "pytest", "hypothesis")
BUILD: Final = (
    "from torchprof_hooks.kernel.core import CORE; print(CORE.name, CORE.reason)"
)
PARTS: Final = ("build", "accuracy", "cost", "tests")
#: Those that say something where kernels compute nothing.
QUICK_PARTS: Final = ("build", "accuracy", "cost")
#: What takes long, and is run only if it is asked for.
MORE: Final = ("bench_overhead", "bench_coverage")


def parts(folder: Path) -> dict[str, Part]:
    """All parts, in the order in which they run: first those that tell the most.

    folder: for their logs.
    """
    pytest = ["-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider"]
    tests = ["-m", "gpu and values", *test_files(ROOT / "tests")]
    found = [
        Part("build", ["-c", BUILD], 150),
        Part("accuracy", ["benchmarks/gpu_accuracy.py"], 100),
        Part("cost", ["benchmarks/gpu_cost.py"], 170),
        Part("tests", [*pytest, *tests], 120, folder / "tests.log"),
        *(Part(name, [f"benchmarks/{name}.py"], 400) for name in MORE),
    ]
    return {part.name: part for part in found}


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


def is_ready() -> bool:
    """Whether this interpreter has all that the parts need."""
    installed_torch()
    return all(find_spec(name) is not None for name in NEEDED)


def test_files(directory: Path) -> list[str]:
    """Those with such tests: the others need not be importable there."""
    files = sorted(directory.rglob("test_*.py"))
    return [str(path) for path in files if "pytest.mark.values" in path.read_text()]


def run(names: Sequence[str], quick: bool, budget: Budget) -> dict[str, Outcome]:
    """Run parts, and save what came of them all."""
    import gpu_verdict

    gpu_verdict.forget(names)
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as folder:
        known = parts(Path(folder))
        for name in names:
            outcomes[name] = budget.run(known[name], environment(quick))
            log = known[name].log
            if log is not None and log.exists():
                gpu_verdict.save_tests(log.read_text(errors="replace"))
        gpu_verdict.save(outcomes)
    return outcomes


def environment(quick: bool) -> Mapping[str, str]:
    """That of the parts."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    found = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return {**found, "BENCH_QUICK": "1"} if quick else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        help=f"of {', '.join([*PARTS, *MORE])}; {', '.join(PARTS)} by default",
    )
    parser.add_argument(
        "--quick", action="store_true", help="see that all runs; nothing is kept"
    )
    parser.add_argument(
        "--seconds", type=float, default=BUDGET_S, help="for all parts together"
    )
    parser.add_argument(
        "--ready", action="store_true", help="only look whether all is there"
    )
    parser.add_argument(
        "--constraint", action="store_true", help="only print which torch is there"
    )
    arguments = parser.parse_args()
    if arguments.ready:
        sys.exit(0 if is_ready() else INCOMPLETE)
    if arguments.constraint:
        print(f"torch=={installed_torch()}")
        return
    check(arguments)


def check(arguments: Any) -> None:
    budget = Budget(arguments.seconds)
    names = arguments.parts or list(QUICK_PARTS if arguments.quick else PARTS)
    unknown = set(names) - {*PARTS, *MORE}
    if unknown:
        sys.exit(f"gpu-check: there is no part {', '.join(sorted(unknown))}")
    sys.path.insert(0, str(ROOT))
    installed_torch()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.quick:
            os.environ["BENCH_RESULTS"] = folder
        outcomes = run(names, arguments.quick, budget)
    failed = [name for name, each in outcomes.items() if each.status != "done"]
    if failed:
        sys.exit(f"gpu-check: not done: {', '.join(failed)}")


if __name__ == "__main__":
    main()
