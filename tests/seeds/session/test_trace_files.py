"""How a new file comes to its name, and leaves all others alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from torchprof_hooks.session.trace_writer import PARTIAL, new_file


def write(
    directory: Path, content: bytes = b"new", error: BaseException | None = None
) -> str:
    """Write a file, or fail in that; returns what it is called."""
    with new_file(directory, "trace", ".json") as (path, file):
        file.write(content)
        if error:
            raise error
    return path.name


def content_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_file_is_there_when_the_block_is_left_and_not_before(tmp_path: Path) -> None:
    with new_file(tmp_path, "trace", ".json") as (path, file):
        file.write(b"first ")
        file.flush()
        assert path == tmp_path / "trace.json"
        assert [*content_of(tmp_path)] == ["trace.json" + PARTIAL]
        file.write(b"second")
    assert content_of(tmp_path) == {"trace.json": b"first second"}
    assert file.closed


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        ([], "trace.json"),
        (["trace.json"], "trace-2.json"),
        (["trace.json", "trace-2.json"], "trace-3.json"),
        (["trace-2.json"], "trace.json"),
        (["trace.json", "trace-3.json"], "trace-2.json"),
        (["trace", "trace.json.gz", "other.json"], "trace.json"),
        # Somebody is writing these, or was.
        (["trace.json" + PARTIAL], "trace-2.json"),
        (["trace.json", "trace-2.json" + PARTIAL], "trace-3.json"),
        (["trace.json", "trace.json" + PARTIAL], "trace-2.json"),
    ],
)
def test_the_first_free_number_is_taken_and_all_else_stays(
    existing: list[str], expected: str, tmp_path: Path
) -> None:
    others = {name: f"content of {name}".encode() for name in existing}
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    for error in (ValueError("no"), OSError("full"), KeyboardInterrupt(), SystemExit()):
        with pytest.raises(type(error)) as raised:
            write(tmp_path, error=error)
        assert raised.value is error
        assert content_of(tmp_path) == others  # nothing is left of it
    assert write(tmp_path) == expected
    assert content_of(tmp_path) == {**others, expected: b"new"}


def test_many_threads_get_files_of_their_own(tmp_path: Path) -> None:
    threads, rounds = 16, 8
    directory = tmp_path / "made" / "by all"
    barrier = Barrier(threads)

    def work(thread: int) -> dict[str, bytes]:
        written = {}
        for number in range(rounds):
            content = f"{thread} {number}\n".encode() * 1_000
            barrier.wait()
            written[write(directory, content)] = content
        return written

    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(work, range(threads)))

    written = {name: content for part in parts for name, content in part.items()}
    assert content_of(directory) == written
    names = {"trace.json", *(f"trace-{n}.json" for n in range(2, threads * rounds + 1))}
    assert set(written) == names
