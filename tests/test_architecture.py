"""ARCHITECTURE.md says how the code is laid out, and which way a call takes through it:
that is traced here."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import torchprof_hooks
from tests.cores import NATIVE_CORE
from torchprof_hooks import profile
from torchprof_hooks.instruments.devices import device_observers
from torchprof_hooks.kernel.core import NATIVE, Cursor, Node

PACKAGE = Path(torchprof_hooks.__file__).parent
TEXT = (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("\n## The way of a call\n")[2].partition("\n## ")[0]
WAY, PRINTING = re.findall(r"(?:^\| \d+ \| .*\n)+", SECTION, re.MULTILINE)
CLIMBS = SECTION.partition("| moment |")[2].partition("\n\n")[0]


def files_in(table: str) -> list[str]:
    return re.findall(r"^\| \d+ \| `([^`]+)`", table, re.MULTILINE)


class Traced:
    """What runs of this package: files, functions that others call, and functions of
    the core that it calls."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.into_python, self.into_core = Counter[str](), Counter[str]()
        self._in_core: FrameType | None = None

    def run(self, work: Callable[[], object]) -> None:
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            work()
        finally:
            sys.setprofile(before)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if not is_ours(frame):
            return
        name = frame.f_code.co_name
        if event == "call":
            self.files.add(file_of(frame))
            is_climb = not is_ours(frame.f_back) or frame.f_back is self._in_core
            if is_climb and not frame.f_code.co_flags & inspect.CO_GENERATOR:
                self.into_python[name] += 1
        elif event == "c_call" and is_of_core(argument):
            self.into_core[argument.__name__] += 1
            self._in_core = frame
        elif frame is self._in_core:
            self._in_core = None


def is_ours(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(str(PACKAGE))


def file_of(frame: FrameType) -> str:
    return Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix()


def is_of_core(function: Any) -> bool:
    of = getattr(function, "__self__", None)
    return of is NATIVE or isinstance(of, Cursor | Node | NATIVE.Log)


class Training:
    """A model of four modules: the first step has new calls alone."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def call(self) -> None:
        self.model(torch.ones(2, 4)).sum().backward()

    def step(self) -> None:
        self.call()
        self.optimizer.step()


def climbs(times: dict[str, int]) -> tuple[Counter[str], Counter[str]]:
    """Those that the page names, if each moment comes so often."""
    found = Counter[str](), Counter[str]()
    rows = [row.split("|")[1:4] for row in CLIMBS.splitlines()[2:]]
    assert set(times) <= {moment.strip() for moment, *_ in rows}
    for moment, *cells in rows:
        for counter, cell in zip(found, cells, strict=True):
            for name, several in re.findall(r"`(\w+)`(?: x (\d+))?", cell):
                counter[name] += int(several or 1) * times.get(moment.strip(), 0)
    return +found[0], +found[1]


@NATIVE_CORE
def test_the_way_of_a_call_is_as_the_page_says() -> None:
    training, new, known = Training(), Traced(), Traced()
    with profile():
        new.run(training.call)
        training.optimizer.step()
        for _ in range(3):
            training.step()
        known.run(training.step)
    named = files_in(WAY)
    assert len(named) == len(set(named)) <= 24
    of_devices = {"instruments/devices.py"} if device_observers() else set()
    assert {each for each in named if each.endswith(".py")} == new.files - of_devices
    unnamed = [file for file in known.files if f"`{file}`" not in SECTION]
    assert {*unnamed} <= of_devices
    of_known = {"a pass": 1, "an outermost call ends": 1}
    of_new = {"a new call": 4, "an owner that is new in passes": 4}
    assert climbs(of_known | of_new) == (new.into_python, new.into_core)
    of_step = {
        "an optimizer steps, and a step ends": 1,
        "a known call in another one": 3,
    }
    assert climbs(of_known | of_step) == (known.into_python, known.into_core)


@NATIVE_CORE
def test_printing_a_row_is_as_the_page_says() -> None:
    training = Training()
    with profile() as prof:
        for _ in range(3):
            training.step()
    found: set[str] = set()
    inside: list[FrameType] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if not is_ours(frame):
            return
        if event == "call" and frame.f_code.co_name in ("folded_modules", "text_of"):
            inside.append(frame)
            found.update(file_of(f) for f in frames_from(frame) if is_ours(f))
        if event == "call" and inside:
            found.add(file_of(frame))
        if event == "return" and inside and frame is inside[-1]:
            inside.pop()

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        report = prof.report()
    finally:
        sys.setprofile(before)
    assert "Sequential" in report
    named = files_in(PRINTING)
    assert len(named) == len(set(named)) <= 13
    # Only where a layer departs from others of its kind, which is a matter of time.
    found.discard("documents/build/findings.py")
    assert {f for f in found if f.startswith("documents/")} == set(named)


def frames_from(frame: FrameType | None) -> Iterable[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def test_files_of_the_kernel_are_in_the_order_of_their_contract() -> None:
    contract = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    layers = contract.partition('containers = ["torchprof_hooks.kernel"]')[2]
    layers = layers.partition("layers = [")[2].partition("\n]")[0]
    table = TEXT.partition("| file of `kernel/` |")[2].partition("\n\n")[0]
    found = re.findall(r"^\| `kernel/(\w+)", table, re.MULTILINE)
    assert found == re.findall(r"\w+", layers)
