"""Results of the parts of `gpu_check.py`: a file for each part and version of torch,
written anew after each model, so that what fails later loses nothing."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import results
import torch
from bench import result_name
from results import Table
from tools import short

T = TypeVar("T")


def file_name(part: str) -> str:
    """The name of the results of a part, on this device and with this torch."""
    major, minor = torch.__version__.split(".")[:2]
    return f"{result_name(part)}-torch{major}.{minor}"


def files(part: str) -> list[Path]:
    """The results of a part, of all versions of torch, the newest torch first."""
    found = results.DIRECTORY.glob(f"{part}-*-torch*.json")
    return sorted(found, key=_torch_of, reverse=True)


def _torch_of(path: Path) -> tuple[int, ...]:
    return tuple(map(int, path.stem.rpartition("-torch")[2].split(".")))


def chosen(every: Sequence[T]) -> Sequence[T]:
    """All; or the last of them, if BENCH_QUICK is set."""
    return every[-1:] if os.environ.get("BENCH_QUICK") else every


class Progress:
    """The results of a part so far.

    failures: why there are none of a model, by its name.
    """

    def __init__(self, part: str) -> None:
        self.failures: dict[str, str] = {}
        self._part = part
        self._tables: list[Table] = []
        self._figures: dict[str, Any] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is measured inside may fail, by lack of memory, say."""
        try:
            yield
        except Exception as error:  # others are measured nevertheless
            traceback.print_exc()
            self.failures[name] = short(error)
            self._save()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def add(self, tables: Sequence[Table], figures: Mapping[str, Any]) -> None:
        """More results."""
        for table in tables:
            print(f"\n{table.markdown()}", flush=True)
        self._tables += tables
        self._figures.update(figures)
        self._save()

    def _save(self) -> None:
        figures = {"found": self._figures, "failures": self.failures}
        results.write(file_name(self._part), self._tables, figures)
