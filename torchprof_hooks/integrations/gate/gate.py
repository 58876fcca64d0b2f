"""The fixture ``torchprof``: fails a test whose step became slower."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from torchprof_hooks.integrations.gate.baseline import (
    Baseline,
    Machine,
    Run,
    load,
    save,
    this_machine,
)
from torchprof_hooks.integrations.gate.fresh import (
    CHECK,
    FILE,
    measure_again,
    name_in_file,
)
from torchprof_hooks.integrations.gate.measuring import measure
from torchprof_hooks.integrations.gate.table import failure
from torchprof_hooks.integrations.gate.verdict import judge
from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.options import (
    check_callable,
    check_positive,
    check_text,
)

#: The name of those user properties of a test that the terminal summary shows.
PROPERTY: Final = "torchprof"


class PerformanceGate:
    """The value of the fixture ``torchprof``.

    Example::

        def test_training_step(torchprof):
            model, batch = make_model(), make_batch()

            def step():
                model(batch).sum().backward()

            torchprof.check(step)
    """

    def __init__(self, item: Any) -> None:
        runs = item.config.getini("torchprof_runs")
        if not str(runs).isdecimal() or int(runs) < 1:
            raise pytest.UsageError(f"torchprof_runs must be 1 or more, not {runs!r}")
        self._item = item
        self._runs = int(runs)  # how many processes measure a baseline, or a slow step
        self._is_update: bool = item.config.getoption("torchprof_update")
        self._names: set[str] = set()

    def check(
        self,
        step: Callable[[], object],
        *,
        name: str = "",
        tolerance: float = 0.05,
        max_seconds: float = 10.0,
    ) -> None:
        """Fail if the step, or one of its modules, became slower than it was when the
        baseline of this machine was measured, by more than the tolerance and by more
        than chance explains; or if the file of the baseline is not valid. Without a
        baseline, measure and keep one.

        Args:
            step: a training step, or whatever is to stay as fast as it is. It has to do
                the same in each call, and is called some hundred times.
            name: the name of the check, if there are several in the test.
            tolerance: the share by which a step may always be slower: 0.05 is 5 %.
            max_seconds: how long one measurement may take; a quiet machine takes three.

        Raises:
            TypeError, ValueError: a parameter has the wrong type or value, or the test
                has had a check of that name before.
        """
        __tracebackhide__ = True
        check_callable("step", step)
        if name != "":
            check_text("name", name)
        check_positive("tolerance", tolerance)
        check_positive("max_seconds", max_seconds)
        if name in self._names:
            raise ValueError(f"there is a check {name!r} already: give each a name")
        self._names.add(name)
        if FILE not in os.environ:
            self._check(step, name, tolerance, max_seconds)
        elif os.environ.get(CHECK) == name:  # for another process
            save(measure(step, max_seconds).run(), Path(os.environ[FILE]))

    def _check(
        self, step: Callable[[], object], name: str, tolerance: float, seconds: float
    ) -> None:
        __tracebackhide__ = True
        measured = measure(step, seconds)
        profile, run = measured.profile, measured.run()
        device = profile.devices[0] if profile.devices else "cpu"
        machine = this_machine(device, profile.core)
        path = self._path(name, machine)
        if self._is_update or not path.is_file():
            self._without_baseline(path, name, machine)
            return
        old = self._load(path).runs
        verdict, runs = judge(old, [run], tolerance, self._runs), list[Run]()
        while verdict.is_open and len(runs) < self._runs:
            runs.append(measure_again(self._item, name))
            verdict = judge(old, runs, tolerance, self._runs)
        if verdict.slower:
            pytest.fail(failure(verdict, path, len(runs)), pytrace=False)

    def _without_baseline(self, path: Path, name: str, machine: Machine) -> None:
        __tracebackhide__ = True
        if not self._is_update and self._item.config.getoption("torchprof_strict"):
            pytest.fail(
                f"there is no baseline of this machine ({path}): pytest "
                "--torchprof-update measures it",
                pytrace=False,
            )
        runs = tuple(measure_again(self._item, name) for _ in range(self._runs))
        save(Baseline(machine, runs), path)
        self._item.user_properties.append((PROPERTY, f"baseline written: {path}"))

    def _load(self, path: Path) -> Baseline:
        __tracebackhide__ = True
        try:
            found: Baseline = load(Baseline, path)
        except ProfileFileError as error:
            pytest.fail(
                f"{error}; pytest --torchprof-update measures it anew", pytrace=False
            )
        return found

    def _path(self, name: str, machine: Machine) -> Path:
        """One file for each test, check and machine: processes that test at the same
        time on different machines, or different tests, write different ones."""
        path: Path = self._item.path
        config = self._item.config
        folder = config.getini("torchprof_dir")
        root: Path = config.rootpath / folder if folder else path.parent / ".torchprof"
        test = name_in_file(self._item)
        words = [path.stem, *test.split("::"), name, machine.short_name()]
        return root / f"{'.'.join(_file_name(word) for word in words if word)}.json"


def _file_name(word: str) -> str:
    return re.sub(r"[^\w-]+", "_", word, flags=re.ASCII).strip("_")
