"""What the tests gave with which torch and which Python: records, and a page of them.

``make test-torch TORCH=2.15.0 PYTHON=python3.13`` runs all tests in an environment of
its own and ends with ``python docs/compatibility.py record RESULTS.xml ...`` there,
which writes ``docs/compatibility/*.json`` and ``docs/compatibility.md``.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree

HERE: Final = Path(__file__).parent
RECORDS: Final = HERE / "compatibility"
PAGE: Final = HERE / "compatibility.md"

#: Versions of torch and of Python that are promised: the newest, the oldest, the one
#: that this is developed with, and some between.
MATRIX: Final = (
    ("2.15.0", "3.11"),
    ("2.13.0", "3.13"),
    ("2.10.0", "3.12"),
    ("2.8.0", "3.10"),
)

_HEAD: Final = """\
# What it was tested with

The tests of `make test` are run with the newest torch, the oldest that is promised, and
some between, on each version of Python that is promised. A row is written by

    make test-torch TORCH={torch} PYTHON=python{python}

which builds an environment of its own, and shows what came out the last time. Tests
that are skipped need a CUDA device.

| torch | Python | build | platform | date | passed | failed | skipped |
|---|---|---|---|---|---|---|---|
"""


class Record(NamedTuple):
    """What all tests gave in one environment.

    build: what torch was built for: ``CPU``, ``CUDA 12.8``.
    """

    torch: str
    python: str
    build: str
    platform: str
    date: str
    passed: int
    failed: int
    skipped: int


_WHEELS: Final = """
## Wheels

Which binary of the wheel was taken, in an environment without a compiler, a home or a
network, and what the tests gave that need the native core. *Refused*: binaries for
another torch or Python that were tried there on purpose; each was refused, and none
crashed. Then torch claimed to be a newer one: the reference core
ran, with one line that said why. A row is written by

    make wheel
    make check-wheel TORCH={torch} PYTHON=python{python}

| torch | Python | build | binary | refused | date | passed | failed \
| skipped |
|---|---|---|---|---|---|---|---|---|
"""


class WheelRecord(NamedTuple):
    """What wheels/check.py found in one environment."""

    torch: str
    python: str
    build: str
    binary: str
    refused: int
    date: str
    passed: int
    failed: int
    skipped: int

    def row(self) -> str:
        """Of the table."""
        binary = f"`{self.binary.partition('-x86')[0]}`"
        shown = self._replace(binary=binary)._asdict()
        return f"| {' | '.join(map(str, shown.values()))} |\n"


def page(records: Iterable[Record], wheels: Iterable[WheelRecord] = ()) -> str:
    """The page of `records`; rows of the matrix that have none are there as well."""
    found = {(r.torch, _minor(r.python)): _row(r) for r in records}
    for torch, python in MATRIX:
        not_run = f"| {torch} | {python} | not run yet |" + 5 * " |" + "\n"
        found.setdefault((torch, python), not_run)
    newest_first = sorted(found, key=_numbers, reverse=True)
    torch, python = MATRIX[0]
    head = _HEAD.format(torch=torch, python=python)
    rows = "".join(found[key] for key in newest_first)
    tried = {(one.torch, _minor(one.python)): one.row() for one in wheels}
    in_order = [tried[key] for key in sorted(tried, key=_numbers, reverse=True)]
    below = _WHEELS.format(torch=torch, python=python) if in_order else ""
    return head + rows + below + "".join(in_order)


def _row(record: Record) -> str:
    return f"| {' | '.join(map(str, record))} |\n"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _numbers(key: tuple[str, str]) -> list[list[int]]:
    return [[int(part) for part in version.split(".")] for version in key]


def read_records() -> Iterator[Record]:
    """All that have been written."""
    for path in sorted(RECORDS.glob("torch-*.json")):
        yield Record(**json.loads(path.read_text(encoding="utf-8")))


def read_wheel_records() -> Iterator[WheelRecord]:
    """All that wheels/check.py has written."""
    for path in sorted(RECORDS.glob("wheel-*.json")):
        yield WheelRecord(**json.loads(path.read_text(encoding="utf-8")))


def count(results: Iterable[Path]) -> tuple[int, int, int]:
    """How many tests passed, failed and were skipped, by pytest's ``--junitxml``."""
    tests = failed = skipped = 0
    for path in results:
        for suite in ElementTree.parse(path).getroot().iter("testsuite"):
            tests += int(suite.get("tests", 0))
            skipped += int(suite.get("skipped", 0))
            failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    return tests - failed - skipped, failed, skipped


def record(results: Sequence[Path]) -> Record:
    """What `results` say of the environment that this runs in."""
    import torch  # noqa: PLC0415

    cuda = torch.version.cuda
    passed, failed, skipped = count(results)
    return Record(
        torch.__version__.partition("+")[0],
        platform.python_version(),
        f"CUDA {cuda}" if cuda else "CPU",
        f"{platform.system()} {platform.machine()}",
        datetime.now(timezone.utc).date().isoformat(),
        passed,
        failed,
        skipped,
    )


def main(arguments: Sequence[str]) -> int:
    """Record what is in the files that are named, if any, and write the page."""
    code = 0
    if arguments[:1] == ["record"]:
        made = record([Path(name) for name in arguments[1:]])
        RECORDS.mkdir(exist_ok=True)
        name = f"torch-{made.torch}-python-{_minor(made.python)}.json"
        text = json.dumps(made._asdict(), indent=1) + "\n"
        (RECORDS / name).write_text(text, encoding="utf-8")
        code = 1 if made.failed or not made.passed else 0
    PAGE.write_text(page(read_records(), read_wheel_records()), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
