"""Writes traces in another thread, while training goes on."""

from __future__ import annotations

import gzip
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from torchprof_hooks.documents.export.chrome_trace.data_flow import data_flow_events
from torchprof_hooks.documents.export.chrome_trace.document import TraceDocument
from torchprof_hooks.documents.export.chrome_trace.events import (
    memory_events,
    module_events,
)
from torchprof_hooks.instruments.kernels.recording import Recording, Window
from torchprof_hooks.measure.origin import Origin
from torchprof_hooks.profiles.trace.step_trace import StepTrace
from torchprof_hooks.version import __version__

#: The end of the name of a file that is being written.
PARTIAL: Final = ".partial"
#: How many recordings may wait to be written; beyond that, training waits.
MOST_WAITING: Final = 2
#: Seconds that the writer works between two breaks, and seconds of a break.
_WORK_S: Final = 0.0002
_BREAK_S: Final = 0.0005


class TraceOptions(NamedTuple):
    """What a trace shows besides operations and modules; and whether it is
    compressed."""

    show_dataflow: bool
    show_memory: bool
    compress: bool

    @property
    def with_tensors(self) -> bool:
        """Whether tensors have to be recorded."""
        return self.show_dataflow or self.show_memory


class TraceWriter:
    """Writes recordings into files of a folder, one after the other.

    directory: the folder.
    paths: the paths of the files that were written.
    lost: how many recordings were empty, because another profiler began meanwhile.
    failed: how many recordings could not be written.
    first_failure: why the first of these could not; None if none has failed.
    """

    def __init__(self, options: TraceOptions) -> None:
        self.paths: list[Path] = []
        self.lost = 0
        self.failed = 0
        self.first_failure: str | None = None
        self.directory = Path()
        self._options = options
        self._waiting: deque[Future[None]] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._origin = Origin()
        self._rank = ""  # the part of file names that is the rank's
        self._process: int | None = None  # the process that has opened this
        self._is_awaited = False  # whether training waits for the writer thread

    def open(self) -> None:
        """Prepare for recordings of this process."""
        if self._process != os.getpid():  # a fork: threads are not copied
            self._thread = None
            self._waiting.clear()
        self._process = os.getpid()

    def submit(self, step: int, recording: Recording, window: Window) -> None:
        """Write a recording in the writer thread. Write it at once, if this is not open
        in this process, so that nothing would wait for that thread; or if the
        interpreter is ending, and starts no threads."""
        place = self._origin.look()
        self._rank = f"-rank{place.rank}" * (place.world_size > 1)
        if self._process != os.getpid():
            self._try(step, recording, window)
            return
        while len(self._waiting) >= MOST_WAITING:
            self._is_awaited = True
            self._waiting.popleft().result()
        self._is_awaited = False
        try:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "torchprof_hooks trace writer")
            task = self._thread.submit(self._try, step, recording, window)
        except RuntimeError:
            self._try(step, recording, window)
        else:
            self._waiting.append(task)

    def close(self) -> None:
        """Wait until all recordings are written."""
        is_here = self._process == os.getpid()
        self._process = None
        self._is_awaited = True
        if self._thread is not None and is_here:
            self._thread.shutdown(wait=True)
        self._thread = None
        self._waiting.clear()

    def _try(self, step: int, recording: Recording, window: Window) -> None:
        try:
            if recording.is_lost:
                self.lost += 1
            else:
                self.paths.append(self._write(step, recording, window))
        except Exception as error:  # training goes on; the hook will warn
            self.failed += 1
            self.first_failure = (
                self.first_failure or f"{type(error).__name__}: {error}"
            )

    def _write(self, step: int, recording: Recording, window: Window) -> Path:
        yield_gil = _yield_gil(lambda: self._is_awaited)
        options = self._options
        trace = recording.read(step, window, options.with_tensors, yield_gil)
        document = TraceDocument(recording.torch_trace())
        suffix = ".json.gz" if options.compress else ".json"
        new = new_file(self.directory, f"timeline-{step}{self._rank}", suffix)
        with new as (path, file):
            pieces = document.with_events(
                _events(trace, document.base_ns, options),
                path.name,
                {"step": step, "version": __version__},
            )
            with _compressed(file) if options.compress else file as output:
                for piece in pieces:
                    output.write(piece)
                    yield_gil()
        return path


def _events(trace: StepTrace, base_ns: int, options: TraceOptions) -> Iterator[str]:
    yield from module_events(trace, base_ns)
    if options.show_dataflow:
        yield from data_flow_events(trace, base_ns)
    if options.show_memory:
        yield from memory_events(trace, base_ns)


def _compressed(file: BinaryIO) -> BinaryIO:
    return cast("BinaryIO", gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6))


def _yield_gil(is_awaited: Callable[[], bool]) -> Callable[[], None]:
    """A function that lets other threads work now and then, unless training waits for
    this thread. A thread that computes without a break keeps the GIL for 5 ms at a
    time, but training needs it between two operations."""
    since = time.perf_counter()

    def yield_gil() -> None:
        nonlocal since
        if time.perf_counter() - since > _WORK_S and not is_awaited():
            time.sleep(_BREAK_S)
            since = time.perf_counter()

    return yield_gil


@contextmanager
def new_file(
    directory: Path, name: str, suffix: str
) -> Iterator[tuple[Path, BinaryIO]]:
    """A file to write to, and the path that it gets at the end of the block: `name`
    with `suffix`; "<name>-2", "<name>-3" and so on if there is such a file already.
    Makes missing directories.

    Raises:
        OSError: the file cannot be written. Then nothing of it is left.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # Only the writer that made the partial file may use its name. Other writers, also
    # in other processes, find that file, or the one that it was renamed to.
    for number in count(1):
        path = directory / f"{name}{f'-{number}' * (number > 1)}{suffix}"
        partial = path.with_name(path.name + PARTIAL)
        if path.exists():
            continue
        try:
            file = partial.open("xb")
        except FileExistsError:
            continue
        if not path.exists():
            break
        file.close()
        partial.unlink()
    try:
        with file:
            yield path, file
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
