"""The fixture ``torchprof``: fails a test whose step became slower."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from torchprof_hooks.integrations.gate.baseline import (
    Baseline,
    Machine,
    Run,
    load,
    save,
)
from torchprof_hooks.integrations.gate.fresh import (
    FreshProcessError,
    command_for,
    measure_again,
    name_in_file,
    wanted,
)
from torchprof_hooks.integrations.gate.machine import short_name, this_machine
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


class Options(NamedTuple):
    """The user's options.

    update: whether baselines are measured anew.
    is_strict: whether a test without a baseline fails.
    folder: for baselines; None for one beside each test.
    runs: how many processes measure a baseline, or a step that may be slower.
    """

    update: bool
    is_strict: bool
    folder: Path | None
    runs: int


class PerformanceGate:
    """The value of the fixture ``torchprof``.

    Example::

        def test_training_step(torchprof):
            model, batch = make_model(), make_batch()

            def step():
                model(batch).sum().backward()

            torchprof.check(step)
    """

    def __init__(self, item: Any, options: Options) -> None:
        self._item = item
        self._options = options
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
        asked = wanted(os.environ)
        if asked is None:
            self._check(step, name, tolerance, max_seconds)
        elif asked.check == name:
            save(measure(step, max_seconds).run(), asked.file)

    def _check(
        self, step: Callable[[], object], name: str, tolerance: float, seconds: float
    ) -> None:
        __tracebackhide__ = True
        measured = measure(step, seconds)
        profile, run = measured.profile, measured.run()
        device = profile.devices[0] if profile.devices else "cpu"
        machine = this_machine(device, profile.core)
        path = self._path(name, machine)
        if self._options.update or not path.is_file():
            self._without_baseline(path, name, machine)
            return
        old = self._load(path).runs
        wanted_runs = self._options.runs
        verdict, runs = judge(old, [run], tolerance, wanted_runs), list[Run]()
        while verdict.is_open and len(runs) < wanted_runs:
            runs.append(self._again(name))
            verdict = judge(old, runs, tolerance, wanted_runs)
        if verdict.slower:
            pytest.fail(failure(verdict, path, len(runs)), pytrace=False)

    def _without_baseline(self, path: Path, name: str, machine: Machine) -> None:
        __tracebackhide__ = True
        if self._options.is_strict and not self._options.update:
            pytest.fail(
                f"there is no baseline of this machine ({path}): pytest "
                "--torchprof-update measures it",
                pytrace=False,
            )
        runs = tuple(self._again(name) for _ in range(self._options.runs))
        save(Baseline(machine, runs), path)
        self._item.user_properties.append((PROPERTY, f"baseline written: {path}"))

    def _again(self, name: str) -> Run:
        __tracebackhide__ = True
        folder = self._item.config.invocation_params.dir
        try:
            return measure_again(command_for(self._item), folder, name)
        except FreshProcessError as error:
            pytest.fail(str(error), pytrace=False)

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
        folder = self._options.folder or path.parent / ".torchprof"
        test = name_in_file(self._item)
        words = [path.stem, *test.split("::"), name, short_name(machine)]
        return folder / f"{'.'.join(_file_name(word) for word in words if word)}.json"


def _file_name(word: str) -> str:
    return re.sub(r"[^\w-]+", "_", word, flags=re.ASCII).strip("_")
